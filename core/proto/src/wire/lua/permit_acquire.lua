-- Takes permits of a semaphore, or lets the owner that has them keep them for the lease.
-- KEYS   the number of free permits, the ids of taken ones by the ms until which each is kept
-- ARGV   owner, lease ms, not-after ms + lease ms, count (as in acquire), limit (0: whoever has set it knows it), ms for
--        which a permit is kept beyond its lease, channel, publish verbs
-- reply  ends: taken for the lease | now STALE | now ACQUIRED ttl '' | now BUSY ttl | now GONE why | now FOREIGN what
local key, taken, owner, lease, limit = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
--@ clock
if now + lease > tonumber(ARGV[3]) then return {now, STALE} end
--@ permit_ids

local free, held = redis.pcall('GET', key), redis.pcall('ZSCORE', taken, ids[1])
for i, answer in pairs({free, held}) do
  if type(answer) == 'table' then
    if not string.find(answer.err, 'WRONGTYPE', 1, true) then return answer end
    return {now, FOREIGN, redis.call('TYPE', KEYS[i]).ok}
  end
end
if free and not string.find(free, '^-?%d+$') then return {now, FOREIGN, 'string'} end
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

-- Permits whose time is over are free. Their removal comes first: a full server denies no removal, nor what follows one.
local over = redis.call('ZRANGEBYSCORE', taken, '-inf', now, 'LIMIT', 0, 100)
if #over > 0 then
  redis.call('ZREM', taken, unpack(over))
  if free then free = redis.call('INCRBY', key, #over) end
end
-- The count comes back when its key was evicted or deleted.
if not free and limit > 0 then
  free = limit - redis.call('ZCARD', taken)
  redis.call('SET', key, free)
end
free = tonumber(free or 0)

local took = free >= #ids
if took then
  for _, id in ipairs(ids) do redis.call('ZADD', taken, string.format('%.0f', till), id) end
  local left = redis.pcall('DECRBY', key, #ids)
  if type(left) == 'table' then
    redis.call('ZREM', taken, unpack(ids))
    return left
  end
  free = left
  -- The ids of a semaphore that expires expire with it.
  local ttl = redis.call('PTTL', key)
  if ttl > 0 then redis.call('PEXPIRE', taken, ttl) end
end
if #over > 0 and free > 0 then
  for verb in string.gmatch(ARGV[8], '%u+') do redis.pcall(verb, ARGV[7], free) end
end
if took then return now + lease end
local first = redis.call('ZRANGE', taken, 0, 0, 'WITHSCORES')
local ends = tonumber(first[2] or nil)
-- Redisson keeps a permit without a lease until a time like this.
if not ends or ends > 900000000000000 then return {now, BUSY, -1} end
return {now, BUSY, math.max(0, ends - now)}
