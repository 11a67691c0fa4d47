-- Sets the owner's count to a lower one, with the time of the remaining levels.
-- KEYS   lock
-- ARGV   owner, remaining count, ms for the remaining levels, not-after ms
-- reply  now STALE | now KEPT | now GONE why
local lock, owner = KEYS[1], ARGV[1]
--@ clock
if now > tonumber(ARGV[4]) then return {now, STALE} end

--# hash
local fields = redis.pcall('HMGET', lock, owner, 'mode')
if fields.err then return string.find(fields.err, 'WRONGTYPE', 1, true) and {now, GONE, STOLEN} or fields end
-- A read/write lock also takes a name that is held.
if fields[2] then return {now, GONE, STOLEN} end
if not fields[1] then return {now, GONE, redis.call('PTTL', lock) == -2 and DELETED or STOLEN} end
-- A full server denies HSET. A count that stays too high does no harm: the next command sets it.
local set = redis.pcall('HSET', lock, owner, ARGV[2])
if type(set) == 'table' and not string.find(set.err, 'OOM', 1, true) then return set end
--# plain learning
local value = redis.pcall('GET', lock)
if value ~= owner then
  if type(value) ~= 'table' then return {now, GONE, value and STOLEN or DELETED} end
  return string.find(value.err, 'WRONGTYPE', 1, true) and {now, GONE, STOLEN} or value
end
--# all
redis.call('PEXPIRE', lock, ARGV[3])
redis.call('PTTL', lock) -- for the tracking, as in acquire
return {now, KEPT}
