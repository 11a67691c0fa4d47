-- Gives permits of a plain semaphore back, and then takes some: for one caller after the other, as long as there are enough.
-- KEYS   the number of permits, the marker of the client
-- ARGV   not-after ms, sequence number, channel, publish verbs, the permits given back, those that each caller wants
-- reply  now STALE | now CHANGED callers-served number [DENIED] | now SUPERSEDED | now FOREIGN what
--        in a crowd: now PARKED callers-served number ahead (as in acquire; -1 without a place)
--# permits-crowd
--@ crowd_args
--# all
--@ counter
local given, taken, served = tonumber(ARGV[5]), 0, 0
local free = tonumber(count or 0) + given
local most = free
--# permits-crowd
-- Those that have been told hear of what is free.
--@ crowd_left
most = math.max(math.min(given, free), free - left)
--# all
for i = 6, #ARGV do
  local wanted = tonumber(ARGV[i])
  if wanted > most - taken then break end
  taken, served = taken + wanted, served + 1
end
free = free - taken
local result = string.format(':%d:%.0f', served, free)
--@ counter_mark
if given > 0 or taken > 0 then
  -- INCRBY leaves the time to live as it is.
  local changed = redis.pcall('INCRBY', KEYS[1], string.format('%.0f', given - taken))
  --@ counter_marked
end
-- Redisson wakes one asynchronous waiter for each message.
local heard, refused
for i = 1, math.min(given, free, MESSAGES) do
  for verb in string.gmatch(ARGV[4], '%u+') do
    heard = redis.pcall(verb, ARGV[3], string.format('%.0f', free))
--@ told
  end
end
--# permits-crowd
if served > 0 then
--@ crowd_over
--@ crowd_tell
end
if served < #ARGV - 5 and not refused then
--@ crowd_place
--@ crowd_told
  return {now, PARKED, served, free, type(ahead) == 'number' and ahead or -1}
end
--# all
return {now, CHANGED, served, free, refused}
