-- The number of a counter, and what an earlier copy of this call did: the client's marker has the last call that changed
-- this counter, with its result. A full server denies nothing after the first PEXPIRE.
--@ clock
if now > tonumber(ARGV[1]) then return {now, STALE} end
redis.call('PEXPIRE', KEYS[2], MARKED)
local mark = redis.call('GET', KEYS[2])
if mark then
  local seq, done, left = string.match(mark, '^(%d+):(-?%d+):(-?%d+)$')
  if seq == ARGV[2] then return {now, CHANGED, tonumber(done), tonumber(left)} end
  if seq and tonumber(seq) > tonumber(ARGV[2]) then return {now, SUPERSEDED} end
end
--@ counter_value
