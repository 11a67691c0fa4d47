-- Lets the lock live at least ms from now; ttl is the answer of PTTL. Returns what remains then, or
-- the server's refusal. The last command is a read: a write of ours ends the tracking of the key
-- for us, a read begins it again.
local function prolong(lock, ttl, ms)
  if is_refusal(ttl) then return ttl end
  if ttl < ms then
    local set = redis.pcall('PEXPIRE', lock, ms)
    if is_refusal(set) then return set end
  end
  return redis.pcall('PTTL', lock)
end

