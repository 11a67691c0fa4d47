-- A refusal undoes nothing: waiters look by themselves, and the next verb may be allowed. A server that lacks a verb refuses nobody.
if type(heard) == 'table' then
  if string.find(heard.err, 'ermission') or string.find(heard.err, 'executing') then refused = DENIED end
  heard = 0
end
