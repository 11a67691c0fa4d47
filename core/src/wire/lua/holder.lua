-- Owner and count at this lock; nothing when it is free; nil and what it is when it is no such lock.
local function holder(lock)
  local kind = redis.call('TYPE', lock).ok
  if kind == 'none' then return end
  if kind ~= 'hash' then return nil, kind end
  if redis.call('HMGET', lock, 'mode')[1] then return nil, 'rwlock' end
  if redis.call('HLEN', lock) > 1 then return nil, 'hash' end
  local field = redis.call('HGETALL', lock)
  if not string.find(field[2], '^%d+$') then return nil, 'hash' end
  return field[1], field[2]
end

