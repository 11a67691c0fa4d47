-- The last of ARGV in a crowd: the set, the own place, 1 if what is free is left to the first place, the lock's channel
-- and publish verbs. A fault of the set keeps nobody out.
local verbs = table.remove(ARGV)
local channel = table.remove(ARGV)
local waits = table.remove(ARGV)
local place = table.remove(ARGV)
local crowd = table.remove(ARGV)
local first = redis.pcall('ZRANGE', crowd, 0, 0)[1]
local behind = waits == '1' and first and first ~= place
