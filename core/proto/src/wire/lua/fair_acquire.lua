-- Takes a fair lock, or a place in its queue. The queue is a list of owners; a sorted set has the time at which
-- each place runs out. An owner that waits asks again before that, which moves its time on. The times of a queue
-- rise by what each waiter is given (as Redisson's do), so that a grant can take its share off those behind.
-- KEYS   lock, the fencing counter when a token is wanted, queue, times
-- ARGV   owner, lease ms, not-after ms + lease ms, ms that a place is kept (0: takes none), channel, publish verbs,
--        ms that the fencing counter lives (0: for ever; missing without fencing)
-- reply  ends: taken for the lease, without a token; when it ends in ms of the server's clock
--        now STALE | now ACQUIRED ttl token | now BUSY ttl | now FOREIGN what
--        (ttl of BUSY negative when the key has no expiry, or is free for the head of the queue)
local lock, queue, times = KEYS[1], KEYS[#KEYS - 1], KEYS[#KEYS]
local owner, lease, place, fencing = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[7]
--@ clock
if now + lease > tonumber(ARGV[3]) then return {now, STALE} end

local fields = redis.pcall('HMGET', lock, owner, 'mode')
if fields.err then
  if not string.find(fields.err, 'WRONGTYPE', 1, true) then return fields end
  return {now, FOREIGN, redis.call('TYPE', lock).ok}
end
if fields[2] then return {now, FOREIGN, 'rwlock'} end
local held, ttl = fields[1], redis.call('PTTL', lock)
if not held and ttl ~= -2 and redis.call('HLEN', lock) > 1 then return {now, FOREIGN, 'hash'} end

--@ fair_place
--@ fair_heads
if held or ttl == -2 and (not head or head == owner) then
  local plain = not held and not fencing
--@ token
  if not held then redis.call('HSET', lock, owner, 1) end
  if ttl < lease then
    local set = redis.pcall('PEXPIRE', lock, ARGV[2])
    if type(set) == 'table' then
      -- Never leave a lock that does not expire.
      if not held then redis.pcall('DEL', lock) end
      return set
    end
  end
--@ fair_leave
  -- A write of ours ends the tracking of the key for us, a read begins it again.
  ttl = redis.call('PTTL', lock)
  if plain then return now + lease end
  return {now, ACQUIRED, ttl, token}
end

if place > 0 then
  local before = redis.call('LINDEX', queue, at and at - 1 or -1)
  -- The first one has nobody before it; LINDEX counts -1 from the end.
  if at == 0 then before = nil end
  if not at then redis.call('RPUSH', queue, owner) end
  local since = before and tonumber(redis.call('ZSCORE', times, before) or nil) or now
  -- A program that waits without a limit may have a time that is years away.
  since = math.min(math.max(since, now), now + 24 * 3600 * 1000)
  redis.call('ZADD', times, string.format('%.0f', since + place), owner)
end
if dropped and ttl == -2 and head then
  for verb in string.gmatch(ARGV[6], '%u+') do redis.pcall(verb, ARGV[5] .. ':' .. head, '0') end
end
return {now, BUSY, ttl}
