-- Sets the owner's count to a lower one with the time of the remaining levels, or frees the lock
-- and wakes the waiters when nothing remains.
-- KEYS   lock
-- ARGV   owner, remaining count, ms for the remaining levels, not-after ms, publish verbs, channel
-- reply  STALE | RELEASED | KEPT | GONE why
local lock, owner, remaining = KEYS[1], ARGV[1], tonumber(ARGV[2])
if remaining > 0 and is_late(ARGV[4]) then return {now, STALE} end

local held, wrong = find(lock, owner)
if is_refusal(wrong) then return wrong end
if not held or (wrong and remaining > 0) then return {now, GONE, wrong} end

if remaining == 0 then
  -- A full server denies nothing of this.
  free(lock, owner)
  publish(ARGV[5], ARGV[6])
  return {now, RELEASED}
end

-- A full server denies HSET. A count that stays too high does no harm: the next command sets it.
local set = recount(lock, owner, remaining)
if is_refusal(set) and not is_refusal(set, 'OOM') then return set end
redis.call('PEXPIRE', lock, ARGV[3])
redis.call('PTTL', lock) -- for the tracking, as in prolong
return {now, KEPT}
