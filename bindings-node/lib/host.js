'use strict'
// All that the package needs of Node.js. In a browser lib/browser/host.js takes its place.

const { AsyncLocalStorage } = require('node:async_hooks')
const diagnostics = require('node:diagnostics_channel')
const { EventEmitter, addAbortListener, setMaxListeners } = require('node:events')
// Not the global one: what tests put in its place may have no unref(), or never fire.
const { setTimeout } = require('node:timers')
// Contexts of node:vm have no TextDecoder and TextEncoder of their own.
const { TextDecoder, TextEncoder, inspect } = require('node:util')
const { isMainThread } = require('node:worker_threads')

module.exports = {
  AsyncLocalStorage,
  EventEmitter,
  TextDecoder,
  TextEncoder,
  addAbortListener,
  diagnostics,
  hasContexts: true,
  inspect,
  // Loaded when it is needed: Node's sockets come with it, which the native part has no use for.
  isIPv6: (host) => require('node:net').isIPv6(host),
  isMainThread,
  process,
  setMaxListeners,
  setTimeout,
}
