-- Frees one side of a read-write lock. A full server denies nothing of this.
-- The last reader wakes one waiter, a writer all of them, also when its own readers stay.
-- KEYS   lock, for a reader its time-out key; for a writer the mark of waiting writers, if it may have set that
-- ARGV   owner, channel, publish verbs, what time-out keys begin with
-- reply  RELEASED + number of those who heard it, DENIED if that may not be published | 0 GONE why
--# write-crowd
-- In a crowd, ARGV ends with what their channels begin with, the set of the places, and one that is given up.
local place = table.remove(ARGV)
local crowd = table.remove(ARGV)
local tell
local channel, verbs = table.remove(ARGV), ARGV[3]
redis.pcall('ZREM', crowd, place)
--# all
local lock, owner, prefix = KEYS[1], ARGV[1], ARGV[4]
local freed = redis.pcall('HDEL', lock, owner)
--# read
-- The server would track a key that is read when it is gone, and never forget it.
local own = freed == 1 and redis.call('PTTL', KEYS[2])
redis.call('DEL', KEYS[2])
--# write-mark
-- It waits no longer. If no other does, the readers that stood back may come. A fault of the mark keeps no lock
-- that is held.
local mark = KEYS[2]
local unmarked = redis.pcall('ZREM', mark, owner)
if unmarked == 1 then
--@ clock
--@ marked
  if left <= 0 then
    for verb in string.gmatch(ARGV[3], '%u+') do redis.pcall(verb, ARGV[2], '1') end
  end
end
if freed == 0 and type(unmarked) == 'table' then return unmarked end
--# all
if freed ~= 1 then
--# write-crowd
--@ crowd_next
--# all
  if freed == 0 then return {0, GONE, redis.call('PTTL', lock) == -2 and DELETED or STOLEN} end
  return string.find(freed.err, 'WRONGTYPE', 1, true) and {0, GONE, STOLEN} or freed
end

local left = redis.call('HLEN', lock)
local mode = left > 0 and redis.call('HMGET', lock, 'mode')[1]
if left == 1 and mode then redis.call('DEL', lock) end
--# read
if left > 1 then
  local ttl = redis.call('PTTL', lock)
  -- The hash lived for as long as this reader, so it lives for too long now.
  -- Before Redis 7 the clock may go on between two commands of a script.
  local alive = true
  if mode == 'read' and own + 10 >= ttl then
--@ readers
    alive = longest > 0
    if not alive then
      redis.call('DEL', lock)
    elseif ttl < 0 or longest < ttl then
      redis.call('PEXPIRE', lock, longest)
    end
    redis.call('PTTL', lock) -- for the tracking: other readers of this client may be left
  end
  if alive then return RELEASED end
end
--# write
if left > 1 and mode then
  redis.call('HSET', lock, 'mode', 'read')
  local ttl = redis.call('PTTL', lock)
--@ readers
  if longest <= 0 then
    redis.call('DEL', lock)
  elseif ttl < 0 or longest < ttl then
    redis.call('PEXPIRE', lock, longest)
  end
  redis.call('PTTL', lock) -- for the tracking, as above
end
--# all

local heard, refused
--# write-crowd
function tell()
--# read
for verb in string.gmatch(ARGV[3], '%u+') do
  heard = redis.pcall(verb, ARGV[2], '0')
--@ told
end
--# write
for verb in string.gmatch(ARGV[3], '%u+') do
  heard = redis.pcall(verb, ARGV[2], '1')
--@ told
end
--# write-crowd
end
-- The next place hears of it before those that have none.
--@ crowd_next
if not heard then tell() end
--# all
return RELEASED + (refused or heard or 0)
