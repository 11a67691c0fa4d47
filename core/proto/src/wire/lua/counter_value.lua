local count = redis.pcall('GET', KEYS[1])
if type(count) == 'table' then
  if not string.find(count.err, 'WRONGTYPE', 1, true) then return count end
  return {now, FOREIGN, redis.call('TYPE', KEYS[1]).ok}
end
if count and string.format('%d', tonumber(count) or 0) ~= count then return {now, FOREIGN, 'string'} end
