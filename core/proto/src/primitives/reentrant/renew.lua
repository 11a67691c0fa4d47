-- Lets every lock that is still its owner's live at least the given time; recreates nothing. One
-- lock that cannot be handled does not hinder the others.
-- KEYS   locks
-- ARGV   the owner of each lock, then ms: one for all of them, or one for each lock; not-after ms. Several owners of hashes
--        are two words: what they begin with, and how each goes on, with spaces between
-- reply  now STALE | now RENEWED, and unless all are kept, for each lock: 0 kept, 1 refused by the server, DELETED
--        or STOLEN; or the server's refusal, when it refused all
local call, type = redis.pcall, type
--@ clock
-- A copy that comes when its owner has died must not let the lock live for another lease.
if now > tonumber(ARGV[#ARGV]) then return {now, STALE} end
local count, reply, kept = #KEYS, {now, RENEWED}, 0
--# hash
local common = #ARGV <= 4 and ARGV[#ARGV - 1]
local rest = count > 1 and string.gmatch(ARGV[2], '%S+')
--# plain learning
local common = #ARGV == count + 2 and ARGV[count + 1]
--# all
local newer = redis.REDIS_VERSION_NUM -- which tells of Redis 7: its expiries can be asked never to shorten
local refusals, refusal = 0, nil
for i = 1, count do
--# hash
  local lock, owner, ms = KEYS[i], rest and ARGV[1] .. rest() or ARGV[1], common or ARGV[2 + i]
--# plain learning
  local lock, owner, ms = KEYS[i], ARGV[i], common or ARGV[count + i]
--# all
  local result, why = 0, nil
--# hash
  local fields = call('HMGET', lock, owner, 'mode')
  if fields.err then
    why = fields
  elseif fields[2] then
    result = STOLEN -- a read/write lock also takes a name that is held
  elseif not fields[1] then
    result = call('PTTL', lock) == -2 and DELETED or STOLEN
--# plain learning
  local value = call('GET', lock)
  if type(value) == 'table' then
    why = value
  elseif value ~= owner then
    result = value and STOLEN or DELETED
--# all
  else
    local set
    if newer then
      set = call('PEXPIRE', lock, ms, 'GT')
      -- No expiry is later than any, for the server; a lock must not be without.
      if set == 0 and call('PTTL', lock) == -1 then set = call('PEXPIRE', lock, ms) end
    else
      set = call('PTTL', lock)
      if type(set) == 'number' and set - ms < 0 then set = call('PEXPIRE', lock, ms) end
    end
    if type(set) == 'table' then why = set end
  end
  if why and string.find(why.err, 'WRONGTYPE', 1, true) then
    result = STOLEN
  elseif why then
    refusals, refusal, result = refusals + 1, why, 1
  end
  if result == 0 then kept = kept + 1 end
  reply[i + 2] = result
end
-- A write of ours ends the tracking of the keys for us, a read begins it again: one of all keys, since before
-- Redis 7.2, with client tracking, each read costs as much as the script has keys. One by one where that is denied.
if kept > 0 and type(call('EXISTS', unpack(KEYS))) == 'table' then
  for i = 1, count do
    local ttl = reply[i + 2] == 0 and call('PTTL', KEYS[i])
    if type(ttl) == 'table' then
      refusals, refusal, kept, reply[i + 2] = refusals + 1, ttl, kept - 1, 1
    end
  end
end
if kept == count then return {now, RENEWED} end
if refusals == count then return refusal end
return reply
