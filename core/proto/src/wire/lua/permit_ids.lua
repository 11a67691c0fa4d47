-- The ids of an owner's permits. An owner is what its ids begin with, and then how many there are, as two digits of 7 bits.
local stem, many, rest = string.sub(owner, 1, 14), string.byte(owner, 15, 16)
local ids = {stem .. '\0\0'}
for i = 1, many * 128 + rest - 1 do ids[i + 1] = stem .. string.char(math.floor(i / 256), i % 256) end
