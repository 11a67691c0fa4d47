-- The simple lock that remembers how long the work takes: the key behind the lock has the seconds of
-- the last works as a decimal string, kept for a day. Stands behind the functions of the simple lock.
local learnt_key, DAY = KEYS[#KEYS], 24 * 3600

-- What was learnt, if it can be a lease.
local function recall()
  local seconds = tonumber(redis.call('GET', learnt_key) or nil)
  if seconds and seconds >= 0 and seconds <= DAY then return seconds end
end

-- The lease is what was learnt and 10 s, in whole seconds, or what is asked for.
local claim_for = claim
local function claim(lock, owner, count, held, lease)
  local learnt = recall()
  return claim_for(lock, owner, count, held, learnt and math.floor(learnt + 10) * 1000 or lease)
end

-- Learns from work that took so many seconds when so many were asked for. What is well within the
-- asked lease need not be remembered.
local function learn(took, asked)
  if took <= 0 then return end
  local learnt = recall()
  local average = learnt and (learnt * 8 + took * 2) / 10 or took
  if average > asked - 5 or learnt and average == asked - 5 then
    redis.call('SET', learnt_key, string.format('%.14g', average), 'EX', DAY)
  elseif learnt then
    redis.call('DEL', learnt_key)
  end
end

local free_only = free
local function free(lock, owner)
  -- Of a clean-up nothing is learnt. A server that refuses this (full) must not keep the lock.
  if ARGV[7] then pcall(learn, tonumber(ARGV[7]), tonumber(ARGV[8])) end
  free_only(lock, owner)
end

