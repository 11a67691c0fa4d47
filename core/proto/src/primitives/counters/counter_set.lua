-- Sets, adds to or empties a counter.
-- KEYS   the number, the marker of the client
-- ARGV   not-after ms, sequence number, channel, publish verbs, `latch` | `set` (both: if there is no number yet) | `add` |
--        `drain`, the number
-- reply  now STALE | now CHANGED done number [DENIED] | now SUPERSEDED | now FOREIGN what
--        done: whether it was set, or how many were drained
--@ counter
local how, number = ARGV[5], tonumber(ARGV[6])
local before, by, done = tonumber(count or 0), 0, 0
if how == 'add' then
  by = number
elseif how == 'drain' then
  by, done = -before, before
elseif not count then
  by, done = number, 1
end
local left = before + by
local result = string.format(':%.0f:%.0f', done, left)
--@ counter_mark
if by ~= 0 or done == 1 and how ~= 'drain' then
  -- INCRBY leaves the time to live as it is.
  local changed = redis.pcall('INCRBY', KEYS[1], string.format('%.0f', by))
  --@ counter_marked
end
local payload, messages = string.format('%.0f', left), math.min(by, left, MESSAGES)
-- A waiter of Redisson closes its gate.
if how == 'latch' then payload, messages = '1', done end
local heard, refused
for i = 1, messages do
  for verb in string.gmatch(ARGV[4], '%u+') do
    heard = redis.pcall(verb, ARGV[3], payload)
--@ told
  end
end
-- A write of ours ends the tracking of the key for us, a read begins it again.
if how == 'latch' then redis.call('GET', KEYS[1]) end
return {now, CHANGED, done, left, refused}
