-- The longest time of the readers that are left, in ms; -2 when none shows any.
local longest, fields = -2, redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  -- Only a reader's count can be a number without being a writer's. Redisson's readers have a key for each level.
  local levels = not string.find(fields[i], ':write$') and tonumber(fields[i + 1])
  -- Whatever the count says, the server is not kept busy.
  for level = 1, math.min(levels or 0, 1000) do
    longest = math.max(longest, redis.call('PTTL', prefix .. fields[i] .. ':rwlock_timeout:' .. level))
  end
end
-- Without any, they are dead, or Redisson 3.44 to 3.52 renews the hash and not their keys. It may be alive for the
-- lease of its watchdog.
if longest < 0 then longest = ttl < 0 and 30000 or math.min(30000, ttl) end
