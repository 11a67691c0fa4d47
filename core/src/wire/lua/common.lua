-- Stands before every script. Each reply is an array: the server's clock in ms, one of these codes,
-- details. All scripts are idempotent: any copy may arrive any number of times, late or never.
local STALE, ACQUIRED, BUSY, GONE, FOREIGN = 0, 1, 2, 3, 4
local RELEASED, KEPT, RENEWED, FORCED, HOLDER = 5, 6, 7, 8, 9
-- Why an owner's field is not there: the numbers of these lost reasons.
local DELETED, STOLEN = 2, 3

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function is_late(not_after)
  return now > tonumber(not_after)
end

-- Wakes the waiters. A refusal undoes nothing: they look by themselves.
local function publish(verbs, channel)
  for verb in string.gmatch(verbs, '%u+') do redis.pcall(verb, channel, '0') end
end

local function is_refusal(reply, code)
  return type(reply) == 'table' and reply.err and (not code or string.find(reply.err, code, 1, true))
end

