-- The first one that a message of its own wakes. One that was told that it is the first comes by itself, and keeps nobody out.
local first, score, second = unpack(redis.pcall('ZRANGE', crowd, 0, 1, 'WITHSCORES'))
if first ~= place and score and tonumber(score) < 0 then first = second end
local behind = waits == '1' and first and first ~= place
local tell
