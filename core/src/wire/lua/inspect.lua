-- Reads who holds the lock.
-- KEYS   lock
-- reply  HOLDER (nobody) | HOLDER owner count ttl | FOREIGN what     (ttl -1: no expiry)
local lock = KEYS[1]
local owner, count = holder(lock)
if not owner then
  return count and {now, FOREIGN, count} or {now, HOLDER}
end
return {now, HOLDER, owner, count, redis.call('PTTL', lock)}
