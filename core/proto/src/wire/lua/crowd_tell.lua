-- Tells the next ones that they are the first, so that they listen to the releases: one more than permits are free, with
-- those that have been told. The place of one that does not hear it is gone.
local many = redis.pcall('ZCOUNT', crowd, '-inf', '(0')
for _ = 1, 1000 do
  local one = type(many) == 'number' and many <= free and redis.pcall('ZRANGE', crowd, many, many)[1]
  if not one then break end
  local hears = false
  for verb in string.gmatch(verbs or 'PUBLISH', '%u+') do
    local heard = redis.pcall(verb, channel .. ':' .. one, '0')
    hears = hears or type(heard) == 'number' and heard > 0
  end
  many = many + (hears and 1 or 0)
  local done = hears and redis.pcall('ZADD', crowd, 'XX', string.format('%.0f', told), one) or redis.pcall('ZREM', crowd, one)
  if type(done) == 'table' then break end
end
