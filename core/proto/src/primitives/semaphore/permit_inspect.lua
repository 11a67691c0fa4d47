-- Reads who has permits of a semaphore.
-- KEYS   the number of free permits, the ids of taken ones
-- reply  now HOLDER, and for each: first id in hex, permits, ms that they are kept | now FOREIGN what     (ms -1: for ever)
--@ clock
--@ permit_keys
local reply, known, all = {now, HOLDER}, {}, redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
  local id, left = all[i], tonumber(all[i + 1]) - now
  -- The permits of one of our owners differ in the last two bytes.
  local owner = string.sub(id, 1, 14)
  if left > 0 then
    local at = known[owner] or #reply + 1
    known[owner] = at
    if not reply[at] then reply[at], reply[at + 1] = string.gsub(id, '.', function(c) return string.format('%02x', string.byte(c)) end), 0 end
    reply[at + 1] = reply[at + 1] + 1
    reply[at + 2] = left > 900000000000000 and -1 or left
  end
end
for i = 4, #reply, 3 do reply[i] = tostring(reply[i]) end
return reply
