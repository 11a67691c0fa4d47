-- Stands before every script. Each reply is an array: the server's clock in ms, one of these codes,
-- details. All scripts are idempotent: any copy may arrive any number of times, late or never.
local STALE, ACQUIRED, BUSY, GONE, FOREIGN = 0, 1, 2, 3, 4
local RELEASED, KEPT, RENEWED, FORCED, HOLDER = 5, 6, 7, 8, 9
-- Why an owner's field is not there: the numbers of these lost reasons.
local DELETED, STOLEN = 2, 3

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function is_late(not_after)
  return now > tonumber(not_after)
end

local function is_refusal(reply, code)
  return type(reply) == 'table' and reply.err and (not code or string.find(reply.err, code, 1, true))
end

-- The owner's count at this lock, or false; and what is wrong: DELETED, STOLEN (a read/write lock
-- also takes a name that is held) or the server's refusal.
local function find(lock, owner)
  local fields = redis.pcall('HMGET', lock, owner, 'mode')
  if is_refusal(fields, 'WRONGTYPE') then return false, STOLEN end
  if is_refusal(fields) then return false, fields end
  if fields[2] then return fields[1], STOLEN end
  if fields[1] then return fields[1] end
  return false, redis.pcall('PTTL', lock) == -2 and DELETED or STOLEN
end

-- Lets the lock live at least ms from now. Returns the remaining ms, or the server's refusal.
-- The last command is a read: a write of ours ends the tracking of the key for us, a read begins it.
local function prolong(lock, ms)
  local ttl = redis.pcall('PTTL', lock)
  if is_refusal(ttl) or ttl >= ms then return ttl end
  local set = redis.pcall('PEXPIRE', lock, ms)
  if is_refusal(set) then return set end
  return redis.pcall('PTTL', lock)
end

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

