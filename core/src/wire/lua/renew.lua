-- Lets every lock that is still its owner's live at least the given time; recreates nothing. One
-- lock that cannot be handled does not hinder the others.
-- KEYS   locks
-- ARGV   for each lock: owner, ms
-- reply  RENEWED and for each lock: 0 kept, 1 refused by the server, DELETED or STOLEN;
--        or the server's refusal, when it refused all
local reply, refusals, refusal = {now, RENEWED}, 0, nil
for i, lock in ipairs(KEYS) do
  local held, result = find(lock, ARGV[2 * i - 1])
  if not result then
    result = prolong(lock, redis.pcall('PTTL', lock), tonumber(ARGV[2 * i]))
    if not is_refusal(result) then result = 0 end
  end
  if is_refusal(result) then
    refusals, refusal, result = refusals + 1, result, 1
  end
  reply[i + 2] = result
end
if refusals == #KEYS then return refusal end
return reply
