-- Takes the write side of a read-write lock, whoever has the lock: they all lose it. Waiters go on waiting.
-- KEYS   lock, the fencing counter when a token is wanted
-- ARGV   owner, lease ms, not-after ms + lease ms, what time-out keys begin with,
--        ms that the fencing counter lives (0: for ever; missing without fencing)
-- reply  now STALE | now ACQUIRED ttl token | now FOREIGN what
local lock, owner, lease, prefix, fencing = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[5]
--@ clock
if now + lease > tonumber(ARGV[3]) then return {now, STALE} end

local fields = redis.pcall('HMGET', lock, 'mode', owner)
if fields.err then
  if not string.find(fields.err, 'WRONGTYPE', 1, true) then return fields end
  return {now, FOREIGN, redis.call('TYPE', lock).ok}
end
local mode, held = fields[1], fields[2]
if not mode and redis.call('PTTL', lock) ~= -2 then return {now, FOREIGN, 'lock'} end
if mode and mode ~= 'read' and mode ~= 'write' then return {now, FOREIGN, 'lock'} end
--@ token
--@ timeouts
redis.call('DEL', lock)
redis.call('HSET', lock, 'mode', 'write', owner, 1)
local set = redis.pcall('PEXPIRE', lock, ARGV[2])
if type(set) == 'table' then
  redis.pcall('DEL', lock) -- never leave a lock that does not expire
  return set
end
-- A write of ours ends the tracking of the key for us, a read begins it again.
return {now, ACQUIRED, redis.call('PTTL', lock), token}
