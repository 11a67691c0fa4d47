-- Whether there are enough permits for the head of the queue. An owner ends with the number that it wants.
local head = redis.call('LINDEX', queue, 0)
local high, low = string.byte(head or '', 15, 16)
local enough = high and high * 256 + low <= tonumber(free)
