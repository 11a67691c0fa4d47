-- Whether the head of the queue has to ask: it gets its permits, or there are fewer than it wants and it leaves its place
-- to the next one. An owner ends with the number that it wants.
local head = redis.call('LINDEX', queue, 0)
local high, low = string.byte(head or '', 15, 16)
local wants, number = high and high * 128 + low, tonumber(free)
local asks = wants and number > 0 and (wants <= number or wants > number + redis.call('ZCARD', taken))
