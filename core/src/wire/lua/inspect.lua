-- Tells who holds the lock.
-- KEYS: lock
-- Reply: {server ms, code, ...}: 2 held, remaining ms (-1: none), owner, count; 3 free; 5 foreign, what
local name = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kind = redis.call('TYPE', name).ok
if kind == 'none' then return {now, 3} end
if kind ~= 'hash' then return {now, 5, 'a ' .. kind} end
if redis.call('HEXISTS', name, 'mode') == 1 then return {now, 5, 'a read/write lock'} end
local fields = redis.call('HGETALL', name)
return {now, 2, redis.call('PTTL', name), fields[1], fields[2]}
