-- Gives the permits of an owner back. A full server denies nothing of this.
-- KEYS   the number of free permits, the ids of taken ones
-- ARGV   owner, channel, publish verbs (PUBLISH if they are missing)
-- reply  RELEASED + number of those who heard it | 0 GONE why
local key, taken, owner = KEYS[1], KEYS[2], ARGV[1]
--@ permit_ids
local free = redis.pcall('GET', key)
if type(free) == 'table' and not string.find(free.err, 'WRONGTYPE', 1, true) then return free end
local gone = redis.pcall('ZREM', taken, unpack(ids))
if type(gone) == 'table' then
  return string.find(gone.err, 'WRONGTYPE', 1, true) and {0, GONE, STOLEN} or gone
end
local heard = 0
-- Other data than a number is not ours to count in.
if gone > 0 and type(free) == 'string' and string.format('%d', tonumber(free) or 0) == free then
  free = redis.pcall('INCRBY', key, gone)
  if type(free) == 'table' then
    -- They become permits whose time is over, so the next acquisition takes them back.
    for i = 1, gone do redis.call('ZADD', taken, 0, ids[i]) end
    return free
  end
  -- Redisson wakes one asynchronous waiter for each message.
  for i = 1, free > 0 and math.min(gone, MESSAGES) or 0 do
    if not ARGV[3] then
      heard = redis.pcall('PUBLISH', ARGV[2], free)
    else
      for verb in string.gmatch(ARGV[3], '%u+') do heard = redis.pcall(verb, ARGV[2], free) end
    end
  end
end
if gone < #ids then return {0, GONE, free and STOLEN or DELETED} end
return RELEASED + (type(heard) == 'number' and heard or 0)
