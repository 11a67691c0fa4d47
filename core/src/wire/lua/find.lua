-- The owner's count at this lock, or false; and what is wrong: DELETED, STOLEN (a read/write lock
-- also takes a name that is held) or the server's refusal.
local function find(lock, owner)
  local fields = redis.pcall('HMGET', lock, owner, 'mode')
  if is_refusal(fields, 'WRONGTYPE') then return false, STOLEN end
  if is_refusal(fields) then return false, fields end
  if fields[2] then return fields[1], STOLEN end
  if fields[1] then return fields[1] end
  return false, redis.pcall('PTTL', lock) == -2 and DELETED or STOLEN
end

