-- Takes the lock, or sets the count of a hold we have. Any copy may run any number of times.
-- KEYS: lock [, token]
-- ARGV: lease ms, owner, wanted count, not-after (server ms), token expiry ms (0: for ever)
-- Reply: {server ms, code, ...}: 1 acquired, remaining ms, token or ''; 2 busy, remaining ms (-1: none);
--        3 deleted; 4 stolen; 5 foreign, what; 6 stale
local name, lease, owner, count = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[4]) then return {now, 6} end

local kind = redis.call('TYPE', name).ok
if kind ~= 'none' and kind ~= 'hash' then return {now, 5, 'a ' .. kind} end
local mine = false
if kind == 'hash' then
  if redis.call('HEXISTS', name, 'mode') == 1 then return {now, 5, 'a read/write lock'} end
  mine = redis.call('HGET', name, owner)
  if not mine then
    if count > 1 then return {now, 4} end
    return {now, 2, redis.call('PTTL', name)}
  end
elseif count > 1 then
  return {now, 3}
end

-- The token is drawn before the lock is taken: if that is refused, nobody holds anything.
local token = ''
if KEYS[2] and count == 1 then
  if mine then
    token = redis.call('GET', KEYS[2]) or ''
  else
    local last = tonumber(redis.call('GET', KEYS[2]) or '0')
    token = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
    if ARGV[5] == '0' then
      redis.call('SET', KEYS[2], token)
    else
      redis.call('SET', KEYS[2], token, 'PX', ARGV[5])
    end
  end
end

redis.call('HSET', name, owner, ARGV[3])
if redis.call('PTTL', name) < lease then
  local set = redis.pcall('PEXPIRE', name, ARGV[1])
  if type(set) == 'table' and set.err then
    -- A lock without an expiry would outlive everybody.
    if mine then redis.call('HSET', name, owner, mine) else redis.call('HDEL', name, owner) end
    return set
  end
end
-- The last command reads the key, so that client tracking watches it again after our write.
return {now, 1, redis.call('PTTL', name), token}
