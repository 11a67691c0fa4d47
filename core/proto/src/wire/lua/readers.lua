-- The longest time of the readers that are left, in ms; not above 0 when all of them are dead.
local longest, unseen, fields = -2, {}, redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  -- Only a reader's count can be a number without being a writer's. Redisson's readers have a key for each level.
  local levels = not string.find(fields[i], ':write$') and tonumber(fields[i + 1])
  local own = -2
  -- Whatever the count says, the server is not kept busy.
  for level = 1, math.min(levels or 0, 1000) do
    own = math.max(own, redis.call('PTTL', prefix .. fields[i] .. ':rwlock_timeout:' .. level))
  end
  if levels and own < 0 then unseen[#unseen + 1] = prefix .. fields[i] .. ':rwlock_timeout:0' end
  longest = math.max(longest, own)
end
-- A reader without a key is dead, or Redisson 3.44 to 3.52 renews the hash and not its key. It may be alive for the
-- lease of its watchdog, once: a mark keeps until when. Readers that come and go do not prolong that.
if longest < 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for _, mark in ipairs(unseen) do
    local last = tonumber(redis.call('GET', mark) or nil)
    if not last then
      last = now + (ttl < 0 and 30000 or math.min(30000, ttl))
      redis.call('SET', mark, string.format('%.0f', last), 'PX', 600000)
    end
    longest = math.max(longest, last - now)
  end
  if longest <= 0 then
    for _, mark in ipairs(unseen) do redis.call('DEL', mark) end
  end
end
