-- Drops the places at the head that have run out. The owner's own place never does while it asks.
local head, dropped = redis.call('LINDEX', queue, 0), false
while head and head ~= owner do
  local due = tonumber(redis.call('ZSCORE', times, head) or nil)
  if not due then
    -- Its time was lost, by an eviction. Without one it would stay at the head for ever.
    due = now + 5000
    redis.call('ZADD', times, string.format('%.0f', due), head)
--# queued_permits
    -- The key that was evicted had a time to live.
    redis.pcall('PEXPIRE', times, KEPTPLACE)
--# all
  end
  if due > now then break end
  redis.call('LPOP', queue)
  redis.call('ZREM', times, head)
  head, at, dropped = redis.call('LINDEX', queue, 0), at and at - 1, true
end
