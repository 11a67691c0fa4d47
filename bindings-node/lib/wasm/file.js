'use strict'
// The WebAssembly part where the module is a file that can be read: in Node.js, Bun and Deno.

const { AsyncLocalStorage } = require('node:async_hooks')
const { readFileSync } = require('node:fs')
const { join } = require('node:path')
const { backendOf } = require('./host.js')
const { platform } = require('./node.js')
const { threadOf } = require('./thread.js')

// Sockets, streams and timers are made in no context of the program: what they bring concerns all of it.
const snapshot = AsyncLocalStorage.snapshot()
const outside = (make) => (...given) => snapshot(make, ...given)

const module_ = new WebAssembly.Module(readFileSync(join(__dirname, '../../redlatch.wasm')))
const { timer, afterSockets, connect, connectBy, soon } = platform
const backend = backendOf(module_, {
  ...platform,
  timer: outside(timer),
  afterSockets: outside(afterSockets),
  connect: outside(connect),
  connectBy: outside(connectBy),
  soon: outside(soon),
})
module.exports = process.env.REDLATCH_WASM === 'thread' ? threadOf(module_, backend) : backend
