-- So many permits are left to those before it. The first places have been told, and their scores are below 0, which say
-- when.
local told = time[1] * 1000000 + time[2] - TOLD
local left = waits == '1' and (redis.pcall('ZRANK', crowd, place) or redis.pcall('ZCOUNT', crowd, '-inf', '+inf'))
left = type(left) == 'number' and left or 0
