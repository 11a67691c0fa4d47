-- The number of free permits, unless other data is at the keys.
local free, kind = false, redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  free = redis.call('GET', KEYS[1])
  if string.format('%d', tonumber(free) or 0) ~= free then return {now, FOREIGN, kind} end
elseif kind ~= 'none' then
  return {now, FOREIGN, kind}
end
local other = redis.call('TYPE', KEYS[2]).ok
if other ~= 'none' and other ~= 'zset' then return {now, FOREIGN, other} end
