local first = redis.pcall('ZRANGE', crowd, 0, 0)[1]
local behind = waits == '1' and first and first ~= place
