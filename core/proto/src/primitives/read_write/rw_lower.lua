-- Sets the owner's count to a lower one, with the time of the remaining levels.
-- KEYS   lock, for a reader its time-out key
-- ARGV   owner, remaining count, ms for the remaining levels, not-after ms, what time-out keys begin with
-- reply  now STALE | now KEPT | now GONE why
local lock, owner, prefix = KEYS[1], ARGV[1], ARGV[5]
--@ clock
if now > tonumber(ARGV[4]) then return {now, STALE} end

local fields = redis.pcall('HMGET', lock, owner, 'mode')
if fields.err then return string.find(fields.err, 'WRONGTYPE', 1, true) and {now, GONE, STOLEN} or fields end
if not fields[1] then return {now, GONE, redis.call('PTTL', lock) == -2 and DELETED or STOLEN} end
local ttl, least = redis.call('PTTL', lock), tonumber(ARGV[3])
--# read
local own = redis.call('PTTL', KEYS[2])
-- A full server denies SET. Without the key, this reader lives for as long as the hash.
if redis.call('PEXPIRE', KEYS[2], ARGV[3]) == 0 then redis.pcall('SET', KEYS[2], 1, 'PX', ARGV[3]) end
-- The hash has to live as long as this reader, and no longer than the longest of all.
if (ttl >= 0 and ttl < least) or (fields[2] == 'read' and own + 10 >= ttl) then
--@ readers
  redis.call('PEXPIRE', lock, math.max(longest, least))
end
--# write
-- A full server denies no removal, nor what follows one. This removal is of nothing.
redis.call('HDEL', lock, '')
redis.call('HSET', lock, owner, ARGV[2])
--@ readers
longest = math.max(longest, least)
if redis.call('HLEN', lock) == 2 then longest = least end
redis.call('PEXPIRE', lock, longest)
--# all
redis.call('PTTL', lock) -- for the tracking, as in acquire
--# read
redis.call('PTTL', KEYS[2])
--# all
return {now, KEPT}
