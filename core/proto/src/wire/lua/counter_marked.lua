-- The change comes last. If the server denies it, the marker gets the number before this one, so
-- that a copy tries again.
if type(changed) == 'table' and changed.err then
  redis.call('SET', KEYS[2], string.format('%.0f:0:0', ARGV[2] - 1), 'PX', MARKED)
  return changed
end
