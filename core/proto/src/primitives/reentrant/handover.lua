-- Hands the lock over from its owner to the next one of the same client. Nobody is woken: it is not free.
-- KEYS   lock, the fencing counter when a token is wanted
-- ARGV   owner, next owner, lease ms, not-after ms, ms that the fencing counter lives (as for an acquire)
-- reply  when it ends in ms of the server's clock: done for the lease, without a token
--        now STALE | now ACQUIRED ttl token | now GONE why | now FOREIGN what
local lock, owner, to, lease, fencing = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[5]
--@ clock
if now > tonumber(ARGV[4]) then return {now, STALE} end

--# hash
local fields = redis.pcall('HMGET', lock, owner, to, 'mode')
if fields.err then return string.find(fields.err, 'WRONGTYPE', 1, true) and {now, GONE, STOLEN} or fields end
-- A read/write lock also takes a name that is held.
if fields[3] then return {now, GONE, STOLEN} end
-- An earlier copy has done it.
local held = not fields[1] and fields[2]
if not fields[1] and not held then
  return {now, GONE, redis.call('PTTL', lock) == -2 and DELETED or STOLEN}
end
--# plain
local value = redis.pcall('GET', lock)
local held = value == to
if value ~= owner and not held then
  if type(value) ~= 'table' then return {now, GONE, value and STOLEN or DELETED} end
  return string.find(value.err, 'WRONGTYPE', 1, true) and {now, GONE, STOLEN} or value
end
--# all
--@ token
if not held then
--# hash
  redis.call('HSET', lock, to, 1)
  local set = redis.pcall('PEXPIRE', lock, lease)
  if type(set) == 'table' then
    redis.pcall('HDEL', lock, to)
    return set
  end
  redis.call('HDEL', lock, owner)
--# plain
  redis.call('SET', lock, to, 'PX', lease)
--# all
  redis.call('PTTL', lock) -- for the tracking, as in acquire
  return fencing and {now, ACQUIRED, tonumber(lease), token} or now + lease
end
if redis.call('PTTL', lock) - lease < 0 then redis.call('PEXPIRE', lock, lease) end
return {now, ACQUIRED, redis.call('PTTL', lock), token}
