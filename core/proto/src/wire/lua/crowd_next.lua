-- Wakes the first place that somebody listens for, unless the own one is the first. The others are gone. One that has been
-- told that it is the first listens to the lock's channel, and asks again from time to time.
local woken, listens
for _ = 1, 1000 do
  local first, score = unpack(redis.pcall('ZRANGE', crowd, 0, 0, 'WITHSCORES'))
  if not first or first == place then break end
  if tonumber(score) < 0 then
    local time = redis.call('TIME')
    listens = time[1] * 1000000 + time[2] - TOLD - score < FIRSTCROWD * 1000 and first
    if listens then break end
  end
  for verb in string.gmatch(verbs or 'PUBLISH', '%u+') do
    local heard = redis.pcall(verb, channel .. ':' .. first, '0')
    woken = woken or type(heard) == 'number' and heard > 0
  end
  if woken or redis.pcall('ZREM', crowd, first) ~= 1 then break end
end
