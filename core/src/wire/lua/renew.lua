-- Lets every lock that is still its owner's live at least the given time; recreates nothing. One
-- lock that cannot be handled does not hinder the others.
-- KEYS   locks
-- ARGV   for each lock: owner, ms
-- reply  now RENEWED and for each lock: 0 kept, 1 refused by the server, DELETED or STOLEN;
--        or the server's refusal, when it refused all
local call = redis.pcall
--@ clock
local reply = {now, RENEWED}
local refusals, refusal = 0, nil
for i = 1, #KEYS do
  local lock, owner, ms = KEYS[i], ARGV[2 * i - 1], ARGV[2 * i]
  local result, why = 0, nil
--# hash
  local fields = call('HMGET', lock, owner, 'mode')
  if fields.err then
    why = fields
  elseif fields[2] then
    result = STOLEN -- a read/write lock also takes a name that is held
  elseif not fields[1] then
    result = call('PTTL', lock) == -2 and DELETED or STOLEN
--# plain learning
  local value = call('GET', lock)
  if type(value) == 'table' then
    why = value
  elseif value ~= owner then
    result = value and STOLEN or DELETED
--# all
  else
    local ttl = call('PTTL', lock)
    if type(ttl) == 'table' then
      why = ttl
    elseif ttl - ms < 0 then
      local set = call('PEXPIRE', lock, ms)
      if type(set) == 'table' then why = set else call('PTTL', lock) end -- for the tracking, as in acquire
    end
  end
  if why and string.find(why.err, 'WRONGTYPE', 1, true) then
    result = STOLEN
  elseif why then
    refusals, refusal, result = refusals + 1, why, 1
  end
  reply[i + 2] = result
end
if refusals == #KEYS then return refusal end
return reply
