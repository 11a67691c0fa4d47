-- Deletes the lock whoever holds it, and wakes the waiters.
-- KEYS: lock
-- ARGV: not-after (server ms), publish verb, channel
-- Reply: {server ms, code}: 1 deleted; 3 there was none; 5 foreign, what; 6 stale
local name = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then return {now, 6} end
local kind = redis.call('TYPE', name).ok
if kind == 'none' then return {now, 3} end
if kind ~= 'hash' then return {now, 5, 'a ' .. kind} end
if redis.call('HEXISTS', name, 'mode') == 1 then return {now, 5, 'a read/write lock'} end
redis.call('DEL', name)
redis.pcall(ARGV[2], ARGV[3], '0')
return {now, 1}
