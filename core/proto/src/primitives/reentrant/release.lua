-- Frees the lock and wakes the waiters. A full server denies nothing of this.
-- KEYS   lock, what an adaptive lock learnt
-- ARGV   owner, channel, publish verbs (PUBLISH if they are missing),
--        seconds that an adaptive lock was held, seconds that were asked for
-- reply  RELEASED + number of those who heard it, DENIED if that may not be published | 0 GONE why
--# hash-crowd plain-crowd learning-crowd
-- In a crowd, ARGV ends with the set of the places, and one that is given up.
local place = table.remove(ARGV)
local crowd = table.remove(ARGV)
local tell
local channel, verbs = ARGV[2], ARGV[3]
--# plain-crowd learning-crowd
redis.pcall('ZREM', crowd, place)
--# all
local lock, owner = KEYS[1], ARGV[1]
--# hash
-- Removing the last field deletes the key.
local freed = redis.pcall('HDEL', lock, owner)
--# hash-crowd
local ahead, many = redis.pcall('ZRANK', crowd, place), redis.pcall('ZCOUNT', crowd, '-inf', '(0')
redis.pcall('ZREM', crowd, place)
--# hash
if freed ~= 1 then
--# hash-crowd
-- A waiter that leaves from behind others wakes nobody. The first one may hear the channel of the lock alone, and
-- would lose its place. Permits have no owner: one that had been told tells the next one, if no other has been.
  if type(ahead) == 'number' and type(many) == 'number' and ahead < many then
--@ clock
    local free, told = 0, time[1] * 1000000 + time[2] - TOLD
--@ crowd_tell
  elseif (type(ahead) ~= 'number' or ahead == 0) and (type(many) ~= 'number' or many == 0) then
--@ crowd_next
  end
--# hash
  if freed == 0 then return {0, GONE, redis.call('PTTL', lock) == -2 and DELETED or STOLEN} end
  return string.find(freed.err, 'WRONGTYPE', 1, true) and {0, GONE, STOLEN} or freed
end
--# plain learning
local value = redis.pcall('GET', lock)
if value ~= owner then
--# plain-crowd learning-crowd
--@ crowd_next
--# plain learning
  if type(value) ~= 'table' then return {0, GONE, value and STOLEN or DELETED} end
  return string.find(value.err, 'WRONGTYPE', 1, true) and {0, GONE, STOLEN} or value
end
--# learning

-- Learns from work that took so many seconds when so many were asked for. A time well within the
-- asked lease need not be remembered.
local function learn(took, asked)
  if took <= 0 then return end
--@ recall
  local average = learnt and (learnt * 8 + took * 2) / 10 or took
  if average > asked - 5 or learnt and average == asked - 5 then
    redis.call('SET', KEYS[#KEYS], string.format('%.14g', average), 'EX', DAY)
  elseif learnt then
    redis.call('DEL', KEYS[#KEYS])
  end
end
-- A clean-up teaches nothing. A server that refuses this (full) must not keep the lock.
if ARGV[4] then pcall(learn, tonumber(ARGV[4]), tonumber(ARGV[5])) end
--# plain learning
redis.call('DEL', lock)
--# all

local heard, refused
--# hash-crowd plain-crowd learning-crowd
function tell()
--# all
if not ARGV[3] then
  heard = redis.pcall('PUBLISH', ARGV[2], '0')
--@ told
else
  for verb in string.gmatch(ARGV[3], '%u+') do
    heard = redis.pcall(verb, ARGV[2], '0')
--@ told
  end
end
--# hash-crowd plain-crowd learning-crowd
end
-- The next place hears of it before those that have none.
--@ crowd_next
if not heard then tell() end
--# all
return RELEASED + (refused or heard or 0)
