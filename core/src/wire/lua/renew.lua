-- Gives every hold at least its time. Never recreates what is gone; one bad key harms no other.
-- KEYS: locks
-- ARGV: per lock: owner, time ms
-- Reply: {server ms, code per lock}: 1 kept; 3 deleted; 4 stolen; 7 failed
local time = redis.call('TIME')
local reply = {time[1] * 1000 + math.floor(time[2] / 1000)}
for i, name in ipairs(KEYS) do
  local owner, lease = ARGV[2 * i - 1], ARGV[2 * i]
  local code = 7
  local mine = redis.pcall('HEXISTS', name, owner)
  if mine == 1 then
    local left = redis.call('PTTL', name)
    local set = left >= tonumber(lease) or redis.pcall('PEXPIRE', name, lease)
    if type(set) ~= 'table' then code = 1 end
    -- Reads the key after our write, so that client tracking watches it again.
    redis.call('PTTL', name)
  elseif mine == 0 then
    code = redis.call('EXISTS', name) == 0 and 3 or 4
  elseif string.find(mine.err or '', 'WRONGTYPE', 1, true) then
    code = 4
  end
  reply[i + 1] = code
end
return reply
