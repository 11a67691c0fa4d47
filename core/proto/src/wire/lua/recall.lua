-- The lease that an adaptive lock learnt, if it can be one: the seconds of the last works as a decimal string,
-- kept for a day.
local DAY = 24 * 3600
local learnt = tonumber(redis.call('GET', KEYS[#KEYS]) or nil)
if learnt and (learnt < 0 or learnt > DAY or learnt ~= learnt) then learnt = nil end
