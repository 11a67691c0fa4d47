-- Counts a latch down. At 0 its key goes away.
-- KEYS   the count, the marker of the client
-- ARGV   not-after ms, sequence number, channel, publish verbs, how far
-- reply  now STALE | now CHANGED before count [DENIED] | now SUPERSEDED | now FOREIGN what
--@ counter
local before = math.max(tonumber(count or 0), 0)
local left = math.max(before - ARGV[5], 0)
local result = string.format(':%.0f:%.0f', before, left)
--@ counter_mark
if count then
  local changed
  if left > 0 then changed = redis.pcall('DECRBY', KEYS[1], ARGV[5]) else changed = redis.pcall('DEL', KEYS[1]) end
  --@ counter_marked
end
-- One below 0, which others have made, is gone as well.
local heard, refused
if count and tonumber(count) ~= 0 and left == 0 then
  for verb in string.gmatch(ARGV[4], '%u+') do
    heard = redis.pcall(verb, ARGV[3], '0')
--@ told
  end
end
-- A write of ours ends the tracking of the key for us, a read begins it again.
redis.call('GET', KEYS[1])
return {now, CHANGED, before, left, refused}
