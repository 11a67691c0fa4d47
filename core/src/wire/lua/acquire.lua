-- Takes the lock (count 1), or sets the count of the owner that has it; the remaining time becomes
-- max(remaining, lease).
-- KEYS   lock, and the fencing counter when a token is wanted
-- ARGV   owner, count, lease ms, not-after ms, ms that the fencing counter lives (0: for ever)
-- reply  STALE | ACQUIRED ttl token | BUSY ttl | GONE why | FOREIGN what
--        (token '' without fencing; ttl of BUSY -1 when the key has no expiry)
local lock, owner, count = KEYS[1], ARGV[1], tonumber(ARGV[2])
if is_late(ARGV[4]) then return {now, STALE} end

local kind = redis.call('TYPE', lock).ok
if kind ~= 'none' and kind ~= 'hash' then return {now, FOREIGN, kind} end
local held = false
if kind == 'hash' then
  local fields = redis.call('HMGET', lock, owner, 'mode')
  if fields[2] then return {now, FOREIGN, 'rwlock'} end
  held = fields[1]
end
if not held and count > 1 then
  return {now, GONE, kind == 'none' and DELETED or STOLEN}
end
if not held and kind == 'hash' then
  if redis.call('HLEN', lock) > 1 then return {now, FOREIGN, 'hash'} end
  return {now, BUSY, redis.call('PTTL', lock)}
end

-- The token is drawn before the lock is taken, so that a refusal leaves only a gap. A copy of the
-- first grant reads the token that it drew.
local token = ''
if KEYS[2] and count == 1 then
  local drawn = redis.call('GET', KEYS[2])
  token = held and drawn
  if not token then
    local previous = tonumber(drawn or 0)
    if not previous or previous % 1 ~= 0 or previous > 2 ^ 53 - 2 then
      return {now, FOREIGN, 'counter'}
    end
    token = string.format('%.0f', math.max(previous + 1, time[1] * 1000000 + time[2]))
    if ARGV[5] == '0' then
      redis.call('SET', KEYS[2], token)
    else
      redis.call('SET', KEYS[2], token, 'PX', ARGV[5])
    end
  end
end

local ttl = held and redis.call('PTTL', lock) or -1
redis.call('HSET', lock, owner, count)
ttl = prolong(lock, ttl, tonumber(ARGV[3]))
if is_refusal(ttl) then
  -- Never leave a lock that does not expire.
  if held then redis.pcall('HSET', lock, owner, held) else redis.pcall('DEL', lock) end
  return ttl
end
return {now, ACQUIRED, ttl, token}
