-- Frees several locks and wakes the waiters of each. One lock that cannot be handled does not hinder the
-- others, and a full server denies nothing of this.
-- KEYS   locks, no two the same
-- ARGV   for each lock: owner, channel
-- reply  for each lock: freed, and so many have heard it; or ALONE, nothing was done: release has to see to it
local call, reply = redis.pcall, {}
--# plain
local values = call('MGET', unpack(KEYS))
if values.err then return values end
--# all
for i = 1, #KEYS do
  local owner, result = ARGV[2 * i - 1], ALONE
--# hash
  -- Removing the last field deletes the key.
  if call('HDEL', KEYS[i], owner) == 1 then
--# plain
  if values[i] == owner and call('DEL', KEYS[i]) == 1 then
--# all
    -- A refusal undoes nothing: waiters look by themselves.
    local heard = call('PUBLISH', ARGV[2 * i], '0')
    result = type(heard) == 'number' and heard or 0
  end
  reply[i] = result
end
return reply
