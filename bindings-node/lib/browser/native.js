'use strict'
// The WebAssembly part in a browser. It has no sockets: the program opens the streams.

const { inNode } = require('./elsewhere.js')
const { compiled } = require('#module')
const { backendOf } = require('../wasm/host.js')
const { clockOf } = require('../wasm/clock.js')
const { connectBy } = require('../wasm/stream.js')

const nothing = () => {}

function timer(call, wait) {
  const made = setTimeout(call, wait)
  return { clear: () => clearTimeout(made), ref: nothing, unref: nothing }
}

const word = new BigUint64Array(1)

const platform = {
  now: clockOf(Date.now, () => performance.now()),
  random: () => crypto.getRandomValues(word)[0],
  timer,
  // A task of its own. Data of streams arrives in microtasks, which run before it.
  afterSockets: (call) => timer(call, 0),
  soon: (call) => queueMicrotask(call),
  connectBy,
  prepareTls: nothing,
  forgetTls: nothing,
  program: { language: 'browser', pid: 0, host: globalThis.location?.hostname ?? '' },
  // Edge functions have the environment.
  url: () => globalThis.process?.env?.REDLATCH_URL || undefined,
}

module.exports = inNode('../native.js') ?? backendOf(compiled, platform)
