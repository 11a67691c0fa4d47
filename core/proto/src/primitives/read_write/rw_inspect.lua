-- Reads who has this side of a read-write lock.
-- KEYS   lock
-- ARGV   what time-out keys begin with
-- reply  now HOLDER, and for each: owner count ttl | now FOREIGN what     (ttl -1: no expiry)
local lock, prefix = KEYS[1], ARGV[1]
--@ clock
local kind = redis.call('TYPE', lock).ok
if kind == 'none' then return {now, HOLDER} end
local mode = kind == 'hash' and redis.call('HMGET', lock, 'mode')[1]
if not mode then return {now, FOREIGN, kind == 'hash' and 'lock' or kind} end
if mode ~= 'read' and mode ~= 'write' then return {now, FOREIGN, 'lock'} end
local reply, fields, ttl = {now, HOLDER}, redis.call('HGETALL', lock), redis.call('PTTL', lock)
for i = 1, #fields, 2 do
  local owner, count = fields[i], tonumber(fields[i + 1])
--# read
  if count and not string.find(owner, ':write$') then
    local longest = -2
    for level = 1, math.min(count, 1000) do -- as in readers
      longest = math.max(longest, redis.call('PTTL', prefix .. owner .. ':rwlock_timeout:' .. level))
    end
    -- Without a key of its own it lives for as long as the hash.
    if longest < 0 then longest = ttl end
--# write
  if count and string.find(owner, ':write$') then
    local longest = ttl
--# all
    reply[#reply + 1] = owner
    reply[#reply + 1] = fields[i + 1]
    reply[#reply + 1] = longest
  end
end
return reply
