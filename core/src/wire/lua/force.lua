-- Deletes the lock whoever holds it, and wakes the waiters.
-- KEYS   lock
-- ARGV   not-after ms, publish verbs, channel
-- reply  STALE | FORCED 0 (was free) or 1 | FOREIGN what
local lock = KEYS[1]
if is_late(ARGV[1]) then return {now, STALE} end
local owner, what = holder(lock)
if not owner then
  return what and {now, FOREIGN, what} or {now, FORCED, 0}
end
redis.call('DEL', lock)
publish(ARGV[2], ARGV[3])
return {now, FORCED, 1}
