-- Lets an owner keep its permits for the time of its remaining levels.
-- KEYS   the number of free permits, the ids of taken ones
-- ARGV   owner, remaining count, ms for the remaining levels, not-after ms, ms for which a permit is kept beyond that
-- reply  now STALE | now KEPT | now GONE why
local key, taken, owner = KEYS[1], KEYS[2], ARGV[1]
--@ clock
if now > tonumber(ARGV[4]) then return {now, STALE} end
--@ permit_ids
for _, id in ipairs(ids) do
  local score = redis.pcall('ZSCORE', taken, id)
  if type(score) == 'table' then
    return string.find(score.err, 'WRONGTYPE', 1, true) and {now, GONE, STOLEN} or score
  end
  if not score then return {now, GONE, redis.call('EXISTS', key) == 1 and STOLEN or DELETED} end
end
local till = string.format('%.0f', now + tonumber(ARGV[3]) + tonumber(ARGV[5]))
-- A full server denies no removal, nor what follows one. This removal is of nothing.
redis.pcall('ZREM', taken, '')
for _, id in ipairs(ids) do redis.call('ZADD', taken, 'XX', till, id) end
return {now, KEPT}
