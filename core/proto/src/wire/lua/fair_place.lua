-- Where the owner stands in the queue, from 0; false when it has no place. It takes the place of the owner that it was.
local at = redis.pcall('LPOS', queue, owner)
if type(at) == 'table' then -- Redis 6.0.6 is the first that knows it
  at = false
  for i, one in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    if one == owner or one == was then at = i - 1 end
  end
elseif not at and was then
  at = redis.call('LPOS', queue, was)
end
if at and was then
  redis.call('LSET', queue, at, owner)
  redis.call('ZREM', times, was)
end
