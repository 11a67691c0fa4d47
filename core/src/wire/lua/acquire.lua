-- Takes the lock (count 1; 0 if the owner cannot have it yet, so that whoever has it is another), or
-- sets the count of the owner that has it; the remaining time becomes max(remaining, lease).
-- KEYS   lock, and the fencing counter when a token is wanted
-- ARGV   owner, count, lease ms, not-after ms, ms that the fencing counter lives (0: for ever; none
--        without fencing)
-- reply  STALE | ACQUIRED ttl token | BUSY ttl | GONE why | FOREIGN what
--        (token '' without fencing; ttl of BUSY -1 when the key has no expiry)
local lock, owner, count = KEYS[1], ARGV[1], tonumber(ARGV[2])
if is_late(ARGV[4]) then return {now, STALE} end

local held, hindrance, what = look(lock, owner)
if is_refusal(hindrance) then return hindrance end
if hindrance == FOREIGN then return {now, FOREIGN, what} end
if not held and count > 1 then return {now, GONE, hindrance and STOLEN or DELETED} end
if hindrance or (held and count == 0) then return {now, BUSY, redis.call('PTTL', lock)} end

-- The token is drawn before the lock is taken, so that a refusal leaves only a gap. A copy of the
-- first grant reads the token that it drew.
local token = ''
if ARGV[5] and count < 2 then
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

local ttl = claim(lock, owner, count, held, tonumber(ARGV[3]))
if is_refusal(ttl) then return ttl end
return {now, ACQUIRED, ttl, token}
