-- Gives the permits of an owner back, or its place in the queue. A full server denies nothing of this.
-- KEYS   the number of free permits, the ids of taken ones; in fair mode also the queue and the times of its places
-- ARGV   owner, channel, publish verbs (PUBLISH if they are missing)
-- reply  RELEASED + number of those who heard it, DENIED if that may not be published | 0 GONE why
local key, taken, owner = KEYS[1], KEYS[2], ARGV[1]
--@ permit_ids
local free = redis.pcall('GET', key)
if type(free) == 'table' and not string.find(free.err, 'WRONGTYPE', 1, true) then return free end
local gone = redis.pcall('ZREM', taken, unpack(ids))
if type(gone) == 'table' then
  return string.find(gone.err, 'WRONGTYPE', 1, true) and {0, GONE, STOLEN} or gone
end
local heard, refused = 0
-- Other data than a number is not ours to count in.
local counts = type(free) == 'string' and string.format('%d', tonumber(free) or 0) == free
--# queued_permits
-- An owner has permits or a place. The one behind it may want no more than what is free.
if gone == 0 then
  local queue, times, was = KEYS[3], KEYS[4], {}
--@ fair_place
--@ fair_leave
  if at == 0 then
    local channel, verbs = ARGV[2], ARGV[3]
--@ clock
--@ fair_heads
--@ permit_tell
    if asks then
      for verb in string.gmatch(verbs, '%u+') do redis.pcall(verb, channel, free) end
    end
  end
end
--# all
if gone > 0 and counts then
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
--@ told
    else
      for verb in string.gmatch(ARGV[3], '%u+') do
        heard = redis.pcall(verb, ARGV[2], free)
--@ told
      end
    end
  end
end
if gone < #ids then return {0, GONE, free and STOLEN or DELETED} end
return RELEASED + (refused or heard or 0)
