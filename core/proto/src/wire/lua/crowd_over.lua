-- Its place is over. Those that were told and did not come are gone.
redis.pcall('ZREM', crowd, place)
local late = waits == '0' and redis.pcall('ZCOUNT', crowd, '-inf', string.format('%.0f', told - LEFTCROWD * 1000))
if type(late) == 'number' and late > 0 then
  for _, one in ipairs(redis.pcall('ZRANGE', crowd, 0, math.min(late - 1, free))) do redis.pcall('ZREM', crowd, one) end
end
