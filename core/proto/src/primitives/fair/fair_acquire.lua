-- Takes a fair lock, or a place in its queue. The queue is a list of owners; a sorted set has the time at which
-- each place runs out. An owner that waits asks again before that, which moves its time on.
-- KEYS   lock, the fencing counter when a token is wanted, queue, times
-- ARGV   owner, lease ms, not-after ms + lease ms, ms that a place is kept (0: takes none), channel, publish verbs,
--        ms that the fencing counter lives (0: for ever; '' without fencing), earlier owners of its waiter
-- reply  ends: taken for the lease, without a token; when it ends in ms of the server's clock
--        now STALE | now ACQUIRED ttl token | now BUSY ttl | now FOREIGN what
--        (ttl of BUSY negative when the key has no expiry, or is free for the head of the queue)
local lock, queue, times = KEYS[1], KEYS[#KEYS - 1], KEYS[#KEYS]
local owner, lease, place, fencing = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[7] ~= '' and ARGV[7]
local was = {unpack(ARGV, 8)}
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
  -- An earlier owner has the lock, and nobody told its waiter so: it was its turn, and is again.
  local turn = false
  for _, one in ipairs(was) do turn = turn or redis.call('HMGET', lock, one)[1] end
  -- When Redisson grants the lock, it takes from all times behind what that waiter was given, 300 s unless the caller
  -- says otherwise. So a place behind waiters of Redisson gets that on top for each of them. The time of the one before
  -- tells how many there are.
  local before = at ~= 0 and not turn and redis.call('LINDEX', queue, at and at - 1 or -1)
  if not at then redis.call(turn and 'LPUSH' or 'RPUSH', queue, owner) end
  local ahead = (before and tonumber(redis.call('ZSCORE', times, before) or nil) or now) - now
  -- A waiter of Redisson without a limit may have a time that is years away.
  local theirs = math.ceil(math.min(math.max(ahead - place, 0), 24 * 3600 * 1000) / 300000)
  redis.call('ZADD', times, string.format('%.0f', now + place + theirs * 300000), owner)
end
-- It is the head's turn. Perhaps nobody told it: Redisson drops places and tells nobody.
if ttl == -2 and head then
  for verb in string.gmatch(ARGV[6], '%u+') do redis.pcall(verb, ARGV[5] .. ':' .. head, '0') end
end
return {now, BUSY, ttl}
