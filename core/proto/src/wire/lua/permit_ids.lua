-- The ids of an owner's permits. An owner is what its ids begin with, and then how many there are.
local ids, many, rest = {}, string.byte(owner, 15, 16)
for i = 0, many * 256 + rest - 1 do
  ids[i + 1] = string.sub(owner, 1, 14) .. string.char(math.floor(i / 256), i % 256)
end
