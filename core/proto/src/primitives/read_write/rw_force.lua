-- Deletes the lock if this side has it, whoever that is, and wakes the waiters.
-- KEYS   lock
-- ARGV   not-after ms, channel, publish verbs, what time-out keys begin with
-- reply  now STALE | now FORCED 0 (this side did not have it) or 1 | now FOREIGN what
local lock, prefix = KEYS[1], ARGV[4]
--@ clock
if now > tonumber(ARGV[1]) then return {now, STALE} end

local kind = redis.call('TYPE', lock).ok
if kind == 'none' then return {now, FORCED, 0} end
local mode = kind == 'hash' and redis.call('HMGET', lock, 'mode')[1]
if not mode then return {now, FOREIGN, kind == 'hash' and 'lock' or kind} end
if mode ~= 'read' and mode ~= 'write' then return {now, FOREIGN, 'lock'} end
--# read
if mode ~= 'read' then return {now, FORCED, 0} end
--# write
if mode ~= 'write' then return {now, FORCED, 0} end
--# all
--@ timeouts
redis.call('DEL', lock)
--# read
for verb in string.gmatch(ARGV[3], '%u+') do redis.pcall(verb, ARGV[2], '0') end
--# write
for verb in string.gmatch(ARGV[3], '%u+') do redis.pcall(verb, ARGV[2], '1') end
--# all
return {now, FORCED, 1}
