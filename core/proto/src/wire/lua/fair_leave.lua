-- Gives the owner's place up. Those behind it no longer wait for as long as it was given.
if at then
  redis.call('LREM', queue, 1, owner)
  redis.call('ZREM', times, owner)
  for _, one in ipairs(redis.call('LRANGE', queue, at, -1)) do redis.call('ZADD', times, 'XX', 'INCR', -place, one) end
end
