-- The number of a counter. `counter_mark` comes before a change.
--@ clock
if now > tonumber(ARGV[1]) then return {now, STALE} end
--@ counter_value
