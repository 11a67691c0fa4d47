-- Takes the lock, or sets the count of the owner that has it; the remaining time becomes
-- max(remaining, lease).
-- KEYS   lock, the fencing counter when a token is wanted, what an adaptive lock learnt
-- ARGV   owner, lease ms, not-after ms + lease ms,
--        count (1 if it is missing; 0 if the owner cannot have the lock yet, so that whoever has it is
--        another), ms that the fencing counter lives (0: for ever; missing without fencing)
-- reply  ends: taken for the lease, without a token; when it ends in ms of the server's clock
--        now STALE | now ACQUIRED ttl token | now BUSY ttl | now GONE why | now FOREIGN what
--        (token '' without fencing; ttl of BUSY -1 when the key has no expiry)
--# hash-crowd plain-crowd learning-crowd
-- In a crowd a set has the places of those that wait, by the time at which they came.
-- reply also  now PARKED ttl ahead: it has its place, so many are before it
--@ crowd_args
--@ crowd_first
--# all
local lock, owner, lease, latest, count, fencing = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4] or '1', ARGV[5]
--# hash
local ttl = redis.call('PTTL', lock)
--# hash plain

-- The short way: it is free, and that is all there is to it. The server's clock comes with the end of the
-- lock, where the server can tell that (Redis 7): one command, the read that client tracking needs after
-- the last write. An acquisition that turns out to come too late is undone.
local taken = count == '1' and not fencing
--# hash-crowd plain-crowd
taken = taken and not behind
--# hash
if taken then taken = ttl == -2 and redis.call('HSET', lock, owner, count) end
if taken then taken = redis.pcall('PEXPIRE', lock, lease) end
--# plain
if taken then taken = redis.call('SET', lock, owner, 'NX', 'PX', lease) end
--# hash plain
if taken then
  local ends = redis.REDIS_VERSION_NUM and redis.pcall('PEXPIRETIME', lock)
  if type(ends) ~= 'number' then
    local time = redis.call('TIME')
    ends = time[1] * 1000 + math.floor(time[2] / 1000) + lease
    redis.pcall('PTTL', lock)
  end
  local refusal = type(taken) == 'table' and taken.err
  if not refusal and latest - ends >= 0 then
--# hash-crowd plain-crowd
    redis.pcall('ZREM', crowd, place, first or place)
--# hash plain
    return ends
  end
  redis.pcall('DEL', lock) -- and never leave a lock that does not expire
  return refusal and taken or {ends - lease, STALE}
end
--# all

--@ clock
if now + lease > tonumber(latest) then return {now, STALE} end
lease, count = tonumber(lease), tonumber(count)

local held, other = false, false
--# hash
if ttl ~= -2 then
  local fields = redis.pcall('HMGET', lock, owner, 'mode')
  if fields.err then
    if not string.find(fields.err, 'WRONGTYPE', 1, true) then return fields end
    return {now, FOREIGN, redis.call('TYPE', lock).ok}
  end
  if fields[2] then return {now, FOREIGN, 'rwlock'} end
  held, other = fields[1], not fields[1]
  if other and redis.call('HLEN', lock) > 1 then return {now, FOREIGN, 'hash'} end
end
--# plain learning
local value = redis.pcall('GET', lock)
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
  return {now, FOREIGN, redis.call('TYPE', lock).ok}
end
held, other = value == owner, value and value ~= owner
local ttl = value and redis.call('PTTL', lock)
--# all
if not held and count > 1 then return {now, GONE, other and STOLEN or DELETED} end
--# hash-crowd plain-crowd learning-crowd
if behind and not held and not other then
-- It may not have been woken.
--@ crowd_next
  behind = woken
end
if other or behind and not held or count == 0 and held then
--@ crowd_place
--@ crowd_listens
  if type(ahead) == 'number' then return {now, PARKED, ttl or -1, ahead} end
end
--# all
if other or (held and count == 0) then return {now, BUSY, ttl} end

if count > 1 then fencing = nil end
--@ token

--# learning
--@ recall
-- The lease is what was learnt and 10 s, in whole seconds.
if learnt then lease = math.floor(learnt + 10) * 1000 end
--# hash
redis.call('HSET', lock, owner, count)
--# plain learning
if not held then
  redis.call('SET', lock, owner, 'PX', lease)
  ttl = lease
end
--# all
if ttl < lease then
  local set = redis.pcall('PEXPIRE', lock, lease)
  if type(set) == 'table' then
    -- Never leave a lock that does not expire.
--# hash
    if held then redis.pcall('HSET', lock, owner, held) else redis.pcall('DEL', lock) end
--# all
    return set
  end
end
--# hash-crowd plain-crowd learning-crowd
-- The first one was woken and did not come.
redis.pcall('ZREM', crowd, place, first or place)
--# all
-- A write of ours ends the tracking of the key for us, a read begins it again.
return {now, ACQUIRED, redis.call('PTTL', lock), token}
