-- The globals of a script beside KEYS and ARGV; returns the function that runs one.
local command, place, sha1hex, version = ...

local major, minor, patch = string.match(version, '(%d+)%.(%d+)%.(%d+)')
redis = {
  REDIS_VERSION = version,
  REDIS_VERSION_NUM = major * 65536 + minor * 256 + patch,
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  pcall = command,
  sha1hex = sha1hex,
}

function redis.call(...)
  local reply = command(...)
  if type(reply) == 'table' and reply.err then error({err = reply.err, place = place()}) end
  return reply
end

function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
function redis.log() end
function redis.replicate_commands() return true end

-- Lua does not check compiled texts: they would reach the memory of the program.
local compile, byte = loadstring, string.byte
function loadstring(text, name)
  if byte(text, 1) == 27 then return nil, 'compiled Lua is refused' end
  return compile(text, name)
end
string.dump = nil

-- A script reaches no files. It can change the tables of the libraries, also for the next script.
dofile, loadfile, load, print, collectgarbage, newproxy = nil, nil, nil, nil, nil, nil
local pcall, type, tostring, rawset, match, globals = pcall, type, tostring, rawset, string.match, _G
setmetatable(globals, {
  __index = function(_, name) error('Script attempted to access nonexistent global variable \'' .. tostring(name) .. '\'', 2) end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})

return function(script, sha1, keys, args)
  rawset(globals, 'KEYS', keys)
  rawset(globals, 'ARGV', args)
  local fine, reply = pcall(script)
  if fine then return reply end
  local text, where = reply, reply
  if type(reply) == 'table' then
    text, where = reply.err, reply.place
  else
    text = 'ERR ' .. tostring(reply)
  end
  local line = match(tostring(where), '^user_script:(%d+):') or '0'
  return {err = tostring(text) .. ' script: ' .. sha1 .. ', on @user_script:' .. line .. '.'}
end
