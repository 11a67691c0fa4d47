-- Deletes the lock whoever holds it, and wakes the waiters.
-- KEYS   lock
-- ARGV   not-after ms, channel, publish verbs
-- reply  now STALE | now FORCED 0 (was free) or 1 | now FOREIGN what
local lock = KEYS[1]
--@ clock
if now > tonumber(ARGV[1]) then return {now, STALE} end

--@ holder
if not owner then return what and {now, FOREIGN, what} or {now, FORCED, 0} end
redis.call('DEL', lock)
for verb in string.gmatch(ARGV[3], '%u+') do redis.pcall(verb, ARGV[2], '0') end
return {now, FORCED, 1}
