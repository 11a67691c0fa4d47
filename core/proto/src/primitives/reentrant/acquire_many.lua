-- Takes several locks for one lease, each as acquire does for a count of 1 without fencing. One lock that
-- cannot be handled does not hinder the others.
-- KEYS   locks, no two the same
-- ARGV   lease ms, not-after ms, for each lock: owner
-- reply  now, in ms of the server's clock: all are taken
--        now and for each lock: TAKEN; ALONE, nothing was done: acquire has to see to it; else another
--        owner has it, for so many ms (-1 when the key has no expiry)
--        now, and nothing else, in an array: it came too late for all of them
local call, lease, taken, others = redis.pcall, ARGV[1], false, nil
--@ clock
if now > tonumber(ARGV[2]) then return {now} end
-- Reads are few, and of all keys in one command: before Redis 7.2, with client tracking, each of them costs as
-- much as the script has keys. A user who may not do this gets no answer but that.
--# hash
local there = call('EXISTS', unpack(KEYS))
if type(there) == 'table' then return there end
--# all
for i = 1, #KEYS do
  local lock, owner, result = KEYS[i], ARGV[i + 2], ALONE
--# hash
  local ttl = there == 0 and -2 or call('PTTL', lock)
  if ttl == -2 then
    if call('HSET', lock, owner, 1) == 1 then
      if call('PEXPIRE', lock, lease) == 1 then
        result = TAKEN
      else
        call('DEL', lock) -- and never leave a lock that does not expire
      end
    end
  elseif type(ttl) == 'number' then
    local fields = call('HMGET', lock, owner, 'mode')
    if not (fields.err or fields[1] or fields[2]) and call('HLEN', lock) == 1 then result = ttl end
  end
--# plain
  local set = call('SET', lock, owner, 'NX', 'PX', lease)
  if set then
    if set.ok then result = TAKEN end
  else
    local value, ttl = call('GET', lock), call('PTTL', lock)
    if type(value) == 'string' and value ~= owner and type(ttl) == 'number' then result = ttl end
  end
--# all
  if result == TAKEN then
    taken = true
  else
    others = others or {}
    others[i] = result
  end
end
-- A write of ours ends the tracking of the keys for us, a read begins it again.
local seen = taken and call('EXISTS', unpack(KEYS))
--# plain
-- A caller that may not do this gets nothing but that answer.
if type(seen) == 'table' then
  for i = 1, #KEYS do
    if not (others and others[i]) then call('DEL', KEYS[i]) end
  end
  return seen
end
--# all
if not others then return now end
local reply = {now}
for i = 1, #KEYS do reply[i + 1] = others[i] or TAKEN end
return reply
