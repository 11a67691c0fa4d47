-- Wakes the first place that somebody listens for, unless the own one is the first. The others are gone. Those that have
-- been told listen elsewhere.
local woken
for _ = 1, 1000 do
  local first, score = unpack(redis.pcall('ZRANGE', crowd, 0, 0, 'WITHSCORES'))
  if not first or first == place or tonumber(score) < 0 then break end
  for verb in string.gmatch(verbs or 'PUBLISH', '%u+') do
    local heard = redis.pcall(verb, channel .. ':' .. first, '0')
    woken = woken or type(heard) == 'number' and heard > 0
  end
  if woken or redis.pcall('ZREM', crowd, first) ~= 1 then break end
end
