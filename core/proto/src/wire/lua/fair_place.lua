-- Where the owner stands in the queue, from 0; false when it has no place. It takes the place of an earlier owner of its waiter.
local at = redis.pcall('LPOS', queue, owner)
if type(at) == 'table' then -- Redis 6.0.6 is the first that knows it
  local places = {}
  for i, one in ipairs(redis.call('LRANGE', queue, 0, -1)) do places[one] = i - 1 end
  at = places[owner] or false
  for _, one in ipairs(was) do at = at or places[one] or false end
else
  for _, one in ipairs(was) do at = at or redis.call('LPOS', queue, one) end
end
if at and was[1] then
  redis.call('LSET', queue, at, owner)
  redis.call('ZREM', times, unpack(was))
end
