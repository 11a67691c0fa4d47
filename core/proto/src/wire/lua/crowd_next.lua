-- Wakes the first place that somebody listens for, unless the own one is the first. The others are gone. One that has been
-- told that it is the first listens to the lock's channel, asks again from time to time, and keeps its place.
local woken, at = nil, 0
for _ = 1, 1000 do
  local first, score = unpack(redis.pcall('ZRANGE', crowd, at, at, 'WITHSCORES'))
  if not first or first == place then break end
  local time = tonumber(score) < 0 and redis.call('TIME')
  if time and time[1] * 1000000 + time[2] - TOLD - score < FIRSTCROWD * 1000 then
    if tell then tell() end
    at = at + 1
  else
    for verb in string.gmatch(verbs or 'PUBLISH', '%u+') do
      local heard = redis.pcall(verb, channel .. ':' .. first, '0')
      woken = woken or type(heard) == 'number' and heard > 0
    end
    if woken or redis.pcall('ZREM', crowd, first) ~= 1 then break end
  end
end
