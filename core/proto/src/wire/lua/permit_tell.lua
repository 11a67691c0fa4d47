-- Tells the head of the queue that it is, so that it listens to the releases. An owner ends with the number that it wants.
local head, knows = redis.call('LINDEX', queue, 0), false
local own = head and string.gsub(string.sub(head, 1, 14), '.', function(byte) return string.format('%02x', string.byte(byte)) end)
for verb in string.gmatch(head and verbs or '', '%u+') do
  local heard = redis.pcall(verb, channel .. ':' .. own, '0')
  knows = knows or type(heard) == 'number' and heard > 0
end
-- Where it does not hear that, all are told of what is free if the head has to ask: it gets its permits, or there are
-- fewer than it wants and it leaves its place to the next one.
local high, low = string.byte(head or '', 15, 16)
local wants, number = high and high * 128 + low, tonumber(free)
local asks = not knows and wants and number and number > 0 and (wants <= number or wants > number + redis.call('ZCARD', taken))
