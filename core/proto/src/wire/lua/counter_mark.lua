-- The client's marker has its last call that changed this counter, with the result. It gets this call and its `result`,
-- and tells what was there. A copy of this call or a later one puts that back. A full server denies the first SET, and
-- nothing after a PEXPIRE.
local mark = redis.pcall('SET', KEYS[2], ARGV[2] .. result, 'PX', MARKED, 'GET')
if type(mark) == 'table' then
  redis.call('PEXPIRE', KEYS[2], MARKED)
  mark = redis.call('SET', KEYS[2], ARGV[2] .. result, 'PX', MARKED, 'GET')
end
if mark then
  local seq, done, left = string.match(mark, '^(%d+):(-?%d+):(-?%d+)$')
  if seq and tonumber(seq) >= tonumber(ARGV[2]) then
    redis.call('SET', KEYS[2], mark, 'PX', MARKED)
    if seq == ARGV[2] then return {now, CHANGED, tonumber(done), tonumber(left)} end
    return {now, SUPERSEDED}
  end
end
