-- Lowers the count of our hold, or frees the lock. Touches nothing that is not ours.
-- KEYS: lock
-- ARGV: owner, remaining count, remaining time ms, not-after (server ms; 0: none), publish verb, channel
-- Reply: {server ms, code}: 1 released; 2 kept; 3 deleted; 4 stolen; 6 stale
local name, owner, remaining = KEYS[1], ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local not_after = tonumber(ARGV[4])
if not_after > 0 and now > not_after then return {now, 6} end

local kind = redis.call('TYPE', name).ok
if kind == 'none' then return {now, 3} end
if kind ~= 'hash' or redis.call('HEXISTS', name, owner) == 0 then return {now, 4} end

if remaining > 0 then
  -- A full server refuses HSET; the count then stays higher, which harms nobody: it is absolute.
  redis.pcall('HSET', name, owner, ARGV[2])
  redis.call('PEXPIRE', name, ARGV[3])
  redis.call('PTTL', name)
  return {now, 2}
end
-- Nothing on this path is denied by a full server. The message comes last and may be refused.
redis.call('DEL', name)
redis.pcall(ARGV[5], ARGV[6], '0')
return {now, 1}
