-- Lets every owner keep its permits at least for the given time; takes no permit. One semaphore that cannot be
-- handled does not hinder the others.
-- KEYS   the number of free permits of each semaphore, then the ids of taken ones of each
-- ARGV   the owner at each semaphore, then ms: one for all of them, or one for each; not-after ms, ms for which a
--        permit is kept beyond that
-- reply  as of renew
local call = redis.pcall
--@ clock
if now > tonumber(ARGV[#ARGV - 1]) then return {now, STALE} end
local count, margin = #KEYS / 2, tonumber(ARGV[#ARGV])
local reply, kept, refusals, refusal = {now, RENEWED}, 0, 0, nil
-- A full server denies no removal, nor what follows one. This removal is of nothing.
call('ZREM', KEYS[count + 1], '')
local common = #ARGV == count + 3 and ARGV[count + 1]
for i = 1, count do
  local taken, owner, till = KEYS[count + i], ARGV[i], now + tonumber(common or ARGV[count + i]) + margin
  local result, why = 0, nil
--@ permit_ids
  for _, id in ipairs(ids) do
    local score = call('ZSCORE', taken, id)
    if type(score) == 'string' and tonumber(score) < till then
      score = call('ZADD', taken, 'XX', string.format('%.0f', till), id)
    end
    if type(score) == 'table' then
      why = score
    elseif not score then
      result = call('EXISTS', KEYS[i]) == 1 and STOLEN or DELETED
    end
  end
  if why and string.find(why.err, 'WRONGTYPE', 1, true) then
    result = STOLEN
  elseif why then
    refusals, refusal, result = refusals + 1, why, 1
  end
  if result == 0 then kept = kept + 1 end
  reply[i + 2] = result
end
if kept == count then return {now, RENEWED} end
if refusals == count then return refusal end
return reply
