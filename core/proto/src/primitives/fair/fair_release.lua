-- Frees a fair lock, or gives up a place in its queue, and wakes the head of the queue when the lock is free. A full
-- server denies nothing of this.
-- KEYS   lock, queue, times
-- ARGV   owner, channel, publish verbs
-- reply  RELEASED + number of those who heard it, DENIED if that may not be published | 0 GONE why
local lock, queue, times = KEYS[1], KEYS[2], KEYS[3]
local owner, was = ARGV[1], {}
-- Removing the last field deletes the key.
local freed = redis.pcall('HDEL', lock, owner)
if type(freed) == 'table' and not string.find(freed.err, 'WRONGTYPE', 1, true) then return freed end
--@ fair_place
--@ fair_leave

local heard, refused, free = nil, nil, redis.call('PTTL', lock) == -2
if free then
--@ clock
--@ fair_heads
  if head then
    for verb in string.gmatch(ARGV[3], '%u+') do
      heard = redis.pcall(verb, ARGV[2] .. ':' .. head, '0')
--@ told
    end
  end
end
if freed ~= 1 then return {0, GONE, free and DELETED or STOLEN} end
return RELEASED + (refused or heard or 0)
