-- Deletes a fair lock whoever holds it, and wakes the head of its queue.
-- KEYS   lock, queue, times
-- ARGV   not-after ms, channel, publish verbs
-- reply  now STALE | now FORCED 0 (was free) or 1 | now FOREIGN what
local lock, queue, times = KEYS[1], KEYS[2], KEYS[3]
--@ clock
if now > tonumber(ARGV[1]) then return {now, STALE} end

--@ holder
if not owner then return what and {now, FOREIGN, what} or {now, FORCED, 0} end
redis.call('DEL', lock)
-- The holder stands in no queue.
local at = false
--@ fair_heads
if head then
  for verb in string.gmatch(ARGV[3], '%u+') do redis.pcall(verb, ARGV[2] .. ':' .. head, '0') end
end
return {now, FORCED, 1}
