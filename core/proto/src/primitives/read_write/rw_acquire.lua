-- Takes one side of a read-write lock, or sets the count of the owner that has it; the remaining time becomes
-- max(remaining, lease). A reader's count is always 1 here: it counts its levels in its own process.
-- The hash has the field `mode` (read or write) and a field for each owner, with its count. A reader has a key
-- of its own, which keeps its time: the hash lives for as long as the longest of all.
-- With the option writer_preference a third key is the mark of writers that wait, each with its deadline: a new
-- reader stands back until the last of these, and a grant to a writer ends its own. Redisson does not know it.
-- KEYS   lock, for a reader its time-out key; for a writer the fencing counter when a token is wanted;
--        the mark of waiting writers, if that counts
-- ARGV   owner, lease ms, not-after ms + lease ms,
--        count (1 if it is missing; 0 if the owner cannot have the lock yet, so that another has it),
--        for a reader the field of the writer under which it reads; for a writer ms that its mark lives (missing
--        without a mark), ms that the fencing counter lives (0: for ever; missing without fencing)
-- reply  ends: taken for the lease, without a token; when it ends in ms of the server's clock
--        now STALE | now ACQUIRED ttl token | now BUSY ttl | now GONE why | now FOREIGN what
--        (token '' without fencing; ttl of BUSY -1 when the key has no expiry)
--        in a crowd: now PARKED ttl ahead (as in acquire)
--# write-crowd
--@ crowd_args
--@ crowd_first
--# all
local lock, owner, lease, count = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4] or 1)
--@ clock
if now + lease > tonumber(ARGV[3]) then return {now, STALE} end

--# read
local timeout = KEYS[2]
local fields = redis.pcall('HMGET', lock, 'mode', owner, ARGV[5] or '')
--# write
local fencing = ARGV[5]
--# write-mark
fencing = ARGV[6]
--# write
local fields = redis.pcall('HMGET', lock, 'mode', owner)
--# all
if fields.err then
  if not string.find(fields.err, 'WRONGTYPE', 1, true) then return fields end
  return {now, FOREIGN, redis.call('TYPE', lock).ok}
end
local mode, held = fields[1], fields[2]
if not mode and redis.call('PTTL', lock) ~= -2 then return {now, FOREIGN, 'lock'} end
if mode and mode ~= 'read' and mode ~= 'write' then return {now, FOREIGN, 'lock'} end
if not held and count > 1 then return {now, GONE, mode and STOLEN or DELETED} end
--# read
local barred = not held and mode == 'write' and not fields[3]
--# write
local barred = not held and mode
--# write-mark
local mark = KEYS[#KEYS]
if barred then
  local set = redis.pcall('ZADD', mark, string.format('%.0f', now + ARGV[5]), owner)
  if type(set) == 'number' then
    -- A writer that died left its entry. Nobody else removes it.
    local first = redis.call('ZRANGE', mark, 0, 0, 'WITHSCORES')
    if tonumber(first[2]) <= now then redis.call('ZREM', mark, first[1]) end
--@ marked
  -- A full server denies it: then readers do not stand back.
  elseif not string.find(set.err, 'OOM', 1, true) then
    return set
  end
end
--# write-crowd
if behind and not mode then
-- It may not have been woken.
--@ crowd_next
  behind = woken
end
if barred or behind and not mode or held and count == 0 then
  local ttl = redis.call('PTTL', lock)
--@ crowd_place
--@ crowd_listens
  if type(ahead) == 'number' then return {now, PARKED, ttl, ahead} end
end
--# all
if barred or (held and count == 0) then return {now, BUSY, redis.call('PTTL', lock)} end

--# write
local plain = not held and not fencing
if count > 1 then fencing = nil end
--@ token
--# read
local plain = not held
-- Each of these may be refused. The keys that they leave have an expiry.
if redis.call('PTTL', timeout) < lease then redis.call('SET', timeout, 1, 'PX', ARGV[2]) end
--# read-mark
-- The look is a write. A full server denies nothing after the first write of a script, so that has to be the SET.
if not held then
  local mark = KEYS[3]
--@ marked
  if left > 0 then
    redis.call('DEL', timeout)
    return {now, BUSY, left}
  end
end
--# all
if not mode then
--# read
  redis.call('HSET', lock, 'mode', 'read', owner, 1)
elseif not held then
  redis.call('HSET', lock, owner, 1)
--# write
  redis.call('HSET', lock, 'mode', 'write', owner, 1)
elseif held ~= ARGV[4] and count > 0 then
  redis.call('HSET', lock, owner, count)
--# all
end
if not mode or redis.call('PTTL', lock) < lease then
  local set = redis.pcall('PEXPIRE', lock, ARGV[2])
  if type(set) == 'table' then
    -- Never leave a lock that does not expire.
    if not mode then
      redis.pcall('DEL', lock)
    elseif not held then
      redis.pcall('HDEL', lock, owner)
--# write
    else
      redis.pcall('HSET', lock, owner, held)
--# all
    end
    return set
  end
end
--# write-mark
-- A fault of the mark takes no lock away.
redis.pcall('ZREM', mark, owner)
--# write-crowd
redis.pcall('ZREM', crowd, place, first or place)
--# all
-- A write of ours ends the tracking of the key for us, a read begins it again.
local ttl = redis.call('PTTL', lock)
--# read
local own = redis.call('PTTL', timeout)
--# all
if plain and count == 1 then return now + lease end
--# read
-- The hash lives for as long as the longest of all.
return {now, ACQUIRED, math.min(ttl, own), ''}
--# write
return {now, ACQUIRED, ttl, token}
