-- Gives the permits of an owner back. A full server denies nothing of this.
-- KEYS   the number of free permits, the ids of taken ones
-- ARGV   owner, channel, publish verbs
-- reply  RELEASED + number of those who heard it | 0 GONE why
local key, taken, owner = KEYS[1], KEYS[2], ARGV[1]
--@ permit_ids
local gone = redis.pcall('ZREM', taken, unpack(ids))
if type(gone) == 'table' then
  return string.find(gone.err, 'WRONGTYPE', 1, true) and {0, GONE, STOLEN} or gone
end
local heard = 0
if gone > 0 and redis.call('EXISTS', key) == 1 then
  local free = redis.pcall('INCRBY', key, gone)
  -- Redisson wakes one asynchronous waiter for each message.
  for i = 1, type(free) == 'number' and free > 0 and math.min(gone, 8) or 0 do
    for verb in string.gmatch(ARGV[3], '%u+') do heard = redis.pcall(verb, ARGV[2], free) end
  end
end
if gone < #ids then return {0, GONE, redis.call('EXISTS', key) == 1 and STOLEN or DELETED} end
return RELEASED + (type(heard) == 'number' and heard or 0)
