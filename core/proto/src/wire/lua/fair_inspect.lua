-- Reads who stands in the queue of a fair lock, in order.
-- KEYS   lock, queue, times
-- reply  now HOLDER, and for each: owner 0 ttl     (ttl: how long its place is kept)
local queue, times = KEYS[2], KEYS[3]
--@ clock
local reply = {now, HOLDER}
for _, owner in ipairs(redis.call('LRANGE', queue, 0, -1)) do
  reply[#reply + 1] = owner
  reply[#reply + 1] = '0'
  -- A place that has run out stands there until the next waiter asks.
  reply[#reply + 1] = math.max(0, tonumber(redis.call('ZSCORE', times, owner) or now) - now)
end
return reply
