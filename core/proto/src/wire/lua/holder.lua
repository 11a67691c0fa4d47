-- Owner and count; neither when it is free; what it is when it is no such lock.
local owner, count, what
local kind = redis.call('TYPE', lock).ok
--# hash
if kind == 'hash' then
  if redis.call('HMGET', lock, 'mode')[1] then
    what = 'rwlock'
  elseif redis.call('HLEN', lock) > 1 then
    what = 'hash'
  else
    local field = redis.call('HGETALL', lock)
    if string.find(field[2], '^%d+$') then owner, count = field[1], field[2] else what = 'hash' end
  end
--# plain
if kind == 'string' then
  owner, count = redis.call('GET', lock), '1'
--# all
elseif kind ~= 'none' then
  what = kind
end
