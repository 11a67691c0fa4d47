-- Reads who stands in the queue of a fair lock or semaphore, in order.
-- KEYS   lock, queue, times, or as of permit_acquire
-- reply  now HOLDER, and for each: owner, number of permits that it wants (0 of a lock), ttl
--        (ttl: how long its place is kept)
local queue, times = KEYS[#KEYS - 1], KEYS[#KEYS]
--@ clock
local reply = {now, HOLDER}
for _, owner in ipairs(redis.call('LRANGE', queue, 0, -1)) do
--# hash
  reply[#reply + 1] = owner
  reply[#reply + 1] = '0'
--# queued_permits
  -- The first id of its permits, and their number.
  if #owner == 16 then
  local high, low = string.byte(owner, 15, 16)
  local id = string.sub(owner, 1, 14) .. '\0\0'
  reply[#reply + 1] = string.gsub(id, '.', function(c) return string.format('%02x', string.byte(c)) end)
  reply[#reply + 1] = tostring(high * 128 + low)
--# all
  -- A place that has run out stands there until the next waiter asks.
  reply[#reply + 1] = math.max(0, tonumber(redis.call('ZSCORE', times, owner) or now) - now)
--# queued_permits
  end
--# all
end
return reply
