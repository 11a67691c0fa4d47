-- It looked by itself, and this answer tells it that it is the first. It listens to the lock's channel then, and its score
-- says so.
if ahead == 0 and waits == '0' then
  redis.pcall('ZADD', crowd, 'XX', string.format('%.0f', time[1] * 1000000 + time[2] - TOLD), place)
end
