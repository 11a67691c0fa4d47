-- Sets how many permits there are, if that is asked for, and reads it. Taken permits stay taken: when there are fewer
-- than are taken, the number of free ones is negative until enough are given back.
-- KEYS   the number of free permits, the ids of taken ones
-- ARGV   not-after ms, channel, publish verbs, the new number of all permits (missing: as it is)
-- reply  now STALE | now COUNTED free all | now FOREIGN what
--@ clock
if now > tonumber(ARGV[1]) then return {now, STALE} end
--@ permit_keys
local taken, over = redis.call('ZCARD', KEYS[2]), redis.call('ZCOUNT', KEYS[2], '-inf', now)
local wanted = tonumber(ARGV[4] or nil)
if wanted then
  local before = tonumber(free or 0)
  -- INCRBY leaves the time to live as it is.
  if free then free = redis.call('INCRBY', KEYS[1], wanted - taken - before) end
  if not free then
    redis.call('SET', KEYS[1], wanted - taken)
    redis.pcall('PERSIST', KEYS[2])
  end
  free = wanted - taken
  -- A message tells waiters of any change, also of fewer permits: one that wants more than there are now leaves the queue.
  if free > 0 and free ~= before then
    for i = 1, math.max(math.min(free - before, MESSAGES), 1) do
      for verb in string.gmatch(ARGV[3], '%u+') do redis.pcall(verb, ARGV[2], free) end
    end
  end
end
if not free then return {now, COUNTED, 0, 0} end
return {now, COUNTED, free + over, free + taken}
