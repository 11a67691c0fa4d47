-- Takes its place, if it has none yet. Without one it waits as others do.
redis.pcall('ZADD', crowd, 'NX', string.format('%.0f', time[1] * 1000000 + time[2]), place)
redis.pcall('PEXPIRE', crowd, KEPTCROWD)
local ahead = redis.pcall('ZRANK', crowd, place)
