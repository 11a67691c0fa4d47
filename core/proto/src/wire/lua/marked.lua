-- How long the last of the waiting writers counts, at most 0 if none does. The mark ends with it.
-- PEXPIRE tells whether the mark is there. The server would track a key that is read and not there, and never forget it.
local left = 0
if redis.call('PEXPIRE', mark, 60000) == 1 then
  left = redis.call('ZRANGE', mark, -1, -1, 'WITHSCORES')[2] - now
  redis.call('PEXPIRE', mark, left)
end
