-- Gives all taken permits back, whoever has them.
-- KEYS   the number of free permits, the ids of taken ones
-- ARGV   not-after ms, channel, publish verbs
-- reply  now STALE | now FORCED 0 (none was taken) or 1 | now FOREIGN what
--@ clock
if now > tonumber(ARGV[1]) then return {now, STALE} end
--@ permit_keys
local back = redis.call('ZCARD', KEYS[2])
if back == 0 then return {now, FORCED, 0} end
-- A full server denies no removal, nor what follows one. So the first removal is of nothing.
redis.call('ZREM', KEYS[2], '')
if free then free = redis.call('INCRBY', KEYS[1], back) end
local gone = redis.pcall('DEL', KEYS[2])
if type(gone) == 'table' then
  if free then redis.call('INCRBY', KEYS[1], -back) end
  return gone
end
if free then
  for i = 1, free > 0 and math.min(back, MESSAGES) or 0 do
    for verb in string.gmatch(ARGV[3], '%u+') do redis.pcall(verb, ARGV[2], free) end
  end
end
return {now, FORCED, 1}
