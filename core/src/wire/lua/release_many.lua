-- Frees several locks and wakes the waiters of each. One lock that cannot be handled does not hinder the
-- others, and a full server denies nothing of this.
-- KEYS   locks, no two the same
-- ARGV   for each lock: owner, channel
-- reply  0: all are freed, and nobody has heard it
--        for each lock: freed, and so many have heard it; or ALONE, nothing was done: release has to see to it
local call, others = redis.pcall, nil
--# plain
local values, freed = call('MGET', unpack(KEYS)), true
if values.err then return values end
for i = 1, #KEYS do freed = freed and values[i] == ARGV[2 * i - 1] end
-- As a rule all of them can be freed, and in one go.
freed = freed and call('DEL', unpack(KEYS)) == #KEYS
--# all
for i = 1, #KEYS do
  local owner, result = ARGV[2 * i - 1], ALONE
--# hash
  -- Removing the last field deletes the key.
  if call('HDEL', KEYS[i], owner) == 1 then
--# plain
  if freed or values[i] == owner and call('DEL', KEYS[i]) == 1 then
--# all
    -- A refusal undoes nothing: waiters look by themselves.
    local heard = call('PUBLISH', ARGV[2 * i], '0')
    result = type(heard) == 'number' and heard or 0
  end
  if result ~= 0 then
    others = others or {}
    others[i] = result
  end
end
if not others then return 0 end
for i = 1, #KEYS do others[i] = others[i] or 0 end
return others
