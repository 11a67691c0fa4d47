-- Gives the owner's place up.
if at then
  redis.call('LREM', queue, 1, owner)
  redis.call('ZREM', times, owner)
end
