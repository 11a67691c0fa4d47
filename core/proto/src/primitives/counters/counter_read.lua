-- Reads a counter.
-- KEYS   the number
-- reply  now CHANGED 0 number | now FOREIGN what
--@ clock
--@ counter_value
return {now, CHANGED, 0, tonumber(count or 0)}
