-- Lets every owner of a read-write lock keep it at least for the given time; recreates no owner. One lock that
-- cannot be handled does not hinder the others.
-- KEYS   locks, then for readers the time-out key of each
-- ARGV   the owner of each lock, then ms: one for all of them, or one for each lock; not-after ms
-- reply  now STALE | now RENEWED, and unless all are kept, for each lock: 0 kept, 1 refused by the server, DELETED
--        or STOLEN; or the server's refusal, when it refused all
local call = redis.pcall
--@ clock
-- A copy that comes when its owner has died must not let the lock live for another lease.
if now > tonumber(ARGV[#ARGV]) then return {now, STALE} end
--# read
local count = #KEYS / 2
--# write
local count = #KEYS
--# all
local reply, kept, refusals, refusal = {now, RENEWED}, 0, 0, nil
local common = #ARGV == count + 2 and ARGV[count + 1]
for i = 1, count do
  local lock, ms = KEYS[i], common or ARGV[count + i]
  local result, why = 0, nil
  local fields = call('HMGET', lock, ARGV[i], 'mode')
  if fields.err then
    why = fields
  elseif not (fields[1] and fields[2]) then
    result = call('PTTL', lock) == -2 and DELETED or STOLEN
  else
    local least, set = tonumber(ms), nil
--# read
    -- A key that is gone comes back: Redisson 3.44 to 3.52 may not renew it, a server may evict it.
    local own = call('PTTL', KEYS[count + i])
    if type(own) == 'table' then
      set = own
    elseif own < least then
      -- A full server denies SET, but neither PEXPIRE nor what follows it.
      set = call('PEXPIRE', KEYS[count + i], ms)
      if set == 0 then
        call('DEL', (string.gsub(KEYS[count + i], '1$', '0'))) -- it is alive: as in readers
        set = call('SET', KEYS[count + i], 1, 'PX', ms)
      end
    else
      least = own
    end
--# all
    -- A renewal of Redisson may have made the hash live shorter than this owner asked for.
    if not (type(set) == 'table' and set.err) then
      set = call('PTTL', lock)
      if type(set) == 'number' and set < least then set = call('PEXPIRE', lock, least) end
    end
    if type(set) == 'table' then why = set end
  end
  if why and string.find(why.err, 'WRONGTYPE', 1, true) then
    result = STOLEN
  elseif why then
    refusals, refusal, result = refusals + 1, why, 1
  end
  -- A write of ours ends the tracking of the key for us, a read begins it again.
  if result == 0 then
    call('PTTL', lock)
--# read
    call('PTTL', KEYS[count + i])
--# all
    kept = kept + 1
  end
  reply[i + 2] = result
end
if kept == count then return {now, RENEWED} end
if refusals == count then return refusal end
return reply
