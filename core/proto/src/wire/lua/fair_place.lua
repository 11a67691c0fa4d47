-- Where the owner stands in the queue, from 0; false when it has no place.
local at = redis.pcall('LPOS', queue, owner)
if type(at) == 'table' then -- Redis 6.0.6 is the first that knows it
  at = false
  for i, one in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    if one == owner then at = i - 1 end
  end
end
