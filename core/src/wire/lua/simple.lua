-- How a simple lock lies in Redis: a string, the owner, as SET with NX and PX leaves it. How often
-- the owner holds it is known to the owner alone. The same functions as for a reentrant lock.

local function look(lock, owner)
  local value = redis.pcall('GET', lock)
  if is_refusal(value, 'WRONGTYPE') then return false, FOREIGN, redis.call('TYPE', lock).ok end
  if is_refusal(value) then return false, value end
  if value == owner then return value end
  return false, value and BUSY
end

local function find(lock, owner)
  local value = redis.pcall('GET', lock)
  if is_refusal(value, 'WRONGTYPE') then return false, STOLEN end
  if is_refusal(value) then return false, value end
  if value == owner then return value end
  return false, value and STOLEN or DELETED
end

local function claim(lock, owner, count, held, lease)
  if held then return prolong(lock, redis.call('PTTL', lock), lease) end
  redis.call('SET', lock, owner, 'PX', lease)
  return redis.call('PTTL', lock) -- for the tracking, as in prolong
end

local function recount()
  return 0
end

local function free(lock)
  redis.call('DEL', lock)
end

local function holder(lock)
  local kind = redis.call('TYPE', lock).ok
  if kind == 'none' then return end
  if kind ~= 'string' then return nil, kind end
  return redis.call('GET', lock), '1'
end

