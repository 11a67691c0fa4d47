-- Takes permits of a semaphore, or lets the owner that has them keep them for the lease.
-- KEYS   the number of free permits, the ids of taken ones by the ms until which each is kept; in fair mode also the queue
--        and the times of its places, as of a fair lock
-- ARGV   owner, lease ms, not-after ms + lease ms, count (as in acquire), limit (0: whoever has set it knows it), ms for
--        which a permit is kept beyond its lease, channel, publish verbs; in fair mode also ms that a place is kept (0:
--        takes none), earlier owners of its waiter
-- reply  ends: taken for the lease | now STALE | now ACQUIRED ttl '' | now BUSY ttl | now GONE why | now FOREIGN what
--        in fair mode: now VAIN ttl, when there are fewer permits than it wants, so that it has no place
--        in a crowd, and with a place in fair mode: now PARKED ttl ahead (as in acquire)
--# permits-crowd
--@ crowd_args
--# all
local key, taken, owner, lease, limit = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
--@ clock
if now + lease > tonumber(ARGV[3]) then return {now, STALE} end
--@ permit_ids

local free, held = redis.pcall('GET', key), redis.pcall('ZSCORE', taken, ids[1])
local wrong = type(free) == 'table' and free or type(held) == 'table' and held
if wrong then
  if not string.find(wrong.err, 'WRONGTYPE', 1, true) then return wrong end
  return {now, FOREIGN, redis.call('TYPE', wrong == free and key or taken).ok}
end
if free and string.format('%d', tonumber(free) or 0) ~= free then return {now, FOREIGN, 'string'} end
local till = now + lease + tonumber(ARGV[6])

-- An earlier copy took them, or a level of their owner is new.
if held then
  for i, id in ipairs(ids) do
    local score = tonumber(redis.call('ZSCORE', taken, id) or nil)
    if not score then return {now, GONE, STOLEN} end
    if score < till then redis.call('ZADD', taken, 'XX', string.format('%.0f', till), id) end
  end
  return {now, ACQUIRED, lease, ''}
end
if ARGV[4] ~= '1' then return {now, GONE, free and STOLEN or DELETED} end

-- Permits whose time is over are free. A full server denies no removal, nor what follows one. So the first removal is
-- of nothing: no command that an ACL denies leaves a permit neither free nor taken.
local over = redis.call('ZRANGEBYSCORE', taken, '-inf', now, 'LIMIT', 0, 100)
if #over > 0 then
  redis.call('ZREM', taken, '')
  if free then free = redis.call('INCRBY', key, #over) end
  redis.call('ZREM', taken, unpack(over))
end
--# queued_permits
-- Whether another waiter may be the head now, and no message says so.
local moved = false
--# all
-- The count comes back when its key was evicted or deleted.
if not free and limit > 0 then
  free = limit - redis.call('ZCARD', taken)
  redis.call('SET', key, free)
  -- The ids may have had the time to live of the number that is gone.
  redis.pcall('PERSIST', taken)
--# queued_permits
  moved = true
--# all
end
--# permits
free = tonumber(free or 0)
local took = free >= #ids
--# permits-crowd
-- Those that have been told hear of what is free. They may be those of clients that have ended.
--@ crowd_left
took = free >= #ids + left
--# queued_permits
-- A wish for more than there are holds nobody up: it gets a place when there are enough.
local vain = free and free + redis.call('ZCARD', taken) < #ids
free = tonumber(free or 0)
local queue, times, place, was = KEYS[3], KEYS[4], tonumber(ARGV[9]), {unpack(ARGV, 10)}
--@ fair_place
-- An earlier owner has permits, and nobody told its waiter so: it was its turn, and is again when they are given back.
local turn = false
for _, one in ipairs(was) do turn = turn or redis.call('ZSCORE', taken, string.sub(one, 1, 14) .. '\0\0') end
--@ fair_heads
local took = free >= #ids and (not head or head == owner)
moved = moved or dropped or (took or vain) and at == 0
if took or vain then
--@ fair_leave
elseif place > 0 then
  at = at or not turn and redis.call('RPUSH', queue, owner) - 1 or redis.call('LPUSH', queue, owner) and 0
  redis.call('ZADD', times, string.format('%.0f', now + place), owner)
  -- The last place that was taken or kept runs out last. Nothing is left behind then.
  redis.pcall('PEXPIRE', queue, place)
  redis.pcall('PEXPIRE', times, place)
end
--# all
if took then
  local score = string.format('%.0f', till)
  local words = {score, ids[1]}
  for i = 2, #ids do words[2 * i - 1], words[2 * i] = score, ids[i] end
  -- A give-back uses the command that took, which is allowed then.
  free = redis.call('INCRBY', key, -#ids)
  local new = redis.pcall('ZADD', taken, unpack(words))
  local denied = type(new) == 'table' and new
  if new ~= #ids then free = redis.call('INCRBY', key, denied and #ids or #ids - new) end
  if denied then return denied end
  -- The ids of a semaphore that expires expire with it.
  local ttl = redis.pcall('PTTL', key)
  if type(ttl) == 'number' and ttl > 0 then redis.pcall('PEXPIRE', taken, ttl) end
--# permits-crowd
--@ crowd_over
--@ crowd_tell
--# all
end
--# permits
local tells = #over > 0
--# queued_permits
local tells = #over > 0
if moved then
  local channel, verbs = ARGV[7], ARGV[8]
--@ permit_tell
  tells = tells or asks
end
--# all
if tells and free > 0 then
  for verb in string.gmatch(ARGV[8], '%u+') do redis.pcall(verb, ARGV[7], free) end
end
if took then return now + lease end
local code = BUSY
--# queued_permits
if vain then code = VAIN end
local parked = place > 0 and not vain
--# all
local first = redis.call('ZRANGE', taken, 0, 0, 'WITHSCORES')
local ends = tonumber(first[2] or nil)
-- Redisson keeps a permit without a lease until a time like this.
local ttl = ends and ends <= 900000000000000 and math.max(0, ends - now) or -1
--# permits-crowd
if left > 0 and free >= #ids then ttl = LEFTCROWD end
--@ crowd_place
--@ crowd_told
if type(ahead) == 'number' then return {now, PARKED, ttl, ahead} end
--# queued_permits
if parked then return {now, PARKED, ttl, at} end
--# all
return {now, code, ttl}
