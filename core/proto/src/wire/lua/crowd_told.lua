-- It is told by this answer if it is among the first, one more than permits are free. Without the right to see who has been
-- told it has no place.
local many = redis.pcall('ZCOUNT', crowd, '-inf', '(0')
if type(many) ~= 'number' then ahead = nil end
if type(ahead) == 'number' then
  if ahead >= many and ahead <= math.max(free, 0) then
    redis.pcall('ZADD', crowd, 'XX', string.format('%.0f', told), place)
    many = ahead + 1
  end
  if ahead < many then ahead = 0 end
end
