-- Reads who holds the lock.
-- KEYS   lock
-- reply  now HOLDER (nobody) | now HOLDER owner count ttl | now FOREIGN what     (ttl -1: no expiry)
local lock = KEYS[1]
--@ clock

--@ holder
if not owner then return what and {now, FOREIGN, what} or {now, HOLDER} end
return {now, HOLDER, owner, count, redis.call('PTTL', lock)}
