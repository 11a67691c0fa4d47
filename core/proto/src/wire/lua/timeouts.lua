-- Deletes the time-out keys of all readers. Each reader's client follows its own one and hears at once that it has lost
-- the lock. The lock itself changes with every reader that comes or goes.
local owners = redis.call('HGETALL', lock)
for i = 1, #owners, 2 do
  local levels = not string.find(owners[i], ':write$') and tonumber(owners[i + 1]) or -1
  -- Level 0 is the mark of readers.
  for level = 0, math.min(levels, 1000) do redis.call('DEL', prefix .. owners[i] .. ':rwlock_timeout:' .. level) end
end
