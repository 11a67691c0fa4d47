-- How a reentrant lock lies in Redis: a hash of one field, the owner and its hold count.

-- For an acquisition: the owner's count, or false; and what hinders it: BUSY, or FOREIGN and what
-- lies there.
local function look(lock, owner)
  local kind = redis.call('TYPE', lock).ok
  if kind == 'none' then return false end
  if kind ~= 'hash' then return false, FOREIGN, kind end
  local fields = redis.call('HMGET', lock, owner, 'mode')
  if fields[2] then return false, FOREIGN, 'rwlock' end
  if fields[1] then return fields[1] end
  if redis.call('HLEN', lock) > 1 then return false, FOREIGN, 'hash' end
  return false, BUSY
end

-- For anything else: the owner's count, or false; and what is wrong: DELETED, STOLEN (a read/write
-- lock also takes a name that is held) or the server's refusal.
local function find(lock, owner)
  local fields = redis.pcall('HMGET', lock, owner, 'mode')
  if is_refusal(fields, 'WRONGTYPE') then return false, STOLEN end
  if is_refusal(fields) then return false, fields end
  if fields[2] then return fields[1], STOLEN end
  if fields[1] then return fields[1] end
  return false, redis.pcall('PTTL', lock) == -2 and DELETED or STOLEN
end

-- Makes count the owner's, where held was before, for lease ms at least. Returns what remains, or
-- the server's refusal.
local function claim(lock, owner, count, held, lease)
  local ttl = held and redis.call('PTTL', lock) or -1
  redis.call('HSET', lock, owner, count)
  ttl = prolong(lock, ttl, lease)
  if is_refusal(ttl) then
    -- Never leave a lock that does not expire.
    if held then redis.pcall('HSET', lock, owner, held) else redis.pcall('DEL', lock) end
  end
  return ttl
end

-- Sets the count of an owner that has the lock; what the server says.
local function recount(lock, owner, count)
  return redis.pcall('HSET', lock, owner, count)
end

-- Removing the last field deletes the key.
local function free(lock, owner)
  redis.call('HDEL', lock, owner)
end

-- Owner and count; nothing when it is free; nil and what it is when it is no such lock.
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

