-- Frees several locks and wakes the waiters of each. One lock that cannot be handled does not hinder the
-- others, and a full server denies nothing of this.
-- KEYS   locks, no two the same
-- ARGV   what stands before and behind the name of a lock in that of its channel, for each lock: owner
-- reply  0: all are freed, and nobody has heard it
--        for each lock: freed, and so many have heard it, or DENIED; or ALONE, nothing was done: release has to see to it
local call, before, behind, others = redis.pcall, ARGV[1], ARGV[2], nil
--# plain
local values, freed = call('MGET', unpack(KEYS)), true
if values.err then return values end
for i = 1, #KEYS do freed = freed and values[i] == ARGV[i + 2] end
-- As a rule all of them can be freed, and in one go.
freed = freed and call('DEL', unpack(KEYS)) == #KEYS
--# all
for i = 1, #KEYS do
  local lock, owner, result = KEYS[i], ARGV[i + 2], ALONE
--# hash
  -- Removing the last field deletes the key.
  if call('HDEL', lock, owner) == 1 then
--# plain
  if freed or values[i] == owner and call('DEL', lock) == 1 then
--# all
    -- A refusal undoes nothing: waiters look by themselves.
    local heard = call('PUBLISH', before .. lock .. behind, '0')
    result = type(heard) == 'table' and DENIED or heard
  end
  if result ~= 0 then
    others = others or {}
    others[i] = result
  end
end
if not others then return 0 end
for i = 1, #KEYS do others[i] = others[i] or 0 end
return others
