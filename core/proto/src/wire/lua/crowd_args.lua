-- The last of ARGV in a crowd: the set, the own place, 1 if what is free is left to those before it, the lock's channel
-- and publish verbs. A fault of the set keeps nobody out.
local verbs = table.remove(ARGV)
local channel = table.remove(ARGV)
local waits = table.remove(ARGV)
local place = table.remove(ARGV)
local crowd = table.remove(ARGV)
