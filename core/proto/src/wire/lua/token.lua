-- The fencing token of a first grant: '' without fencing. It is drawn before the lock is taken, so that a
-- refusal leaves only a gap. A copy of the first grant (held) reads the token that it drew.
local token = ''
if fencing then
  local drawn = redis.call('GET', KEYS[2])
  token = held and drawn
  if not token then
    local previous = tonumber(drawn or 0)
    if not previous or previous % 1 ~= 0 or previous > 2 ^ 53 - 2 then
      return {now, FOREIGN, 'counter'}
    end
    token = string.format('%.0f', math.max(previous + 1, time[1] * 1000000 + time[2]))
    -- A counter without an expiry keeps none. Redisson only increments it: an expiry would make it begin at 1 again.
    if fencing == '0' or (drawn and redis.call('PTTL', KEYS[2]) == -1) then
      redis.call('SET', KEYS[2], token)
    else
      redis.call('SET', KEYS[2], token, 'PX', fencing)
    end
  end
end
