'use strict'
// The tests share this: a server and a client per file, names that nobody else uses, and waiting for a condition.

const nodeTest = require('node:test')
const { execFile } = require('node:child_process')
const { join } = require('node:path')
const v8 = require('node:v8')
const vm = require('node:vm')
const { setTimeout: sleep } = require('node:timers/promises')
const { Client } = require('../../index.js')
const { Gateway } = require('./gateway.js')
const { Connection, Server } = require('./server.js')
const exempt = require('./exempt.json')

const { after, before } = nodeTest

const PACKAGE = join(__dirname, '../..')
const LIMIT = 180_000
const runtime = ['bun', 'deno'].find((name) => process.versions[name] !== undefined) ?? 'node'
const THREAD = process.env.REDLATCH_WASM === 'thread' // the WebAssembly part on a thread of its own
const WASM = THREAD || process.env.REDLATCH_WASM === '1'
const HTTP = process.env.REDLATCH_HTTP === '1' // the suite before a gateway

// Other runtimes, the WebAssembly part, that part on the event loop, and that over HTTP leave out the tests that exempt.json names;
// the runner says which.
const left = { ...exempt[runtime], ...(WASM && exempt.wasm), ...(WASM && !THREAD && exempt.loop), ...(HTTP && exempt.http) }
const test = (name, ...rest) => {
  if (left[name] !== undefined) return undefined
  const body = rest.pop()
  // A test that waits for what never comes fails by its name. Bun and Deno have limits of their own.
  const limit = runtime === 'node' ? { timeout: 2 * LIMIT } : {}
  return nodeTest.test(name, { ...limit, ...rest[0] }, body)
}

// Collects what is garbage, in any runtime.
function collector() {
  if (runtime === 'bun') return () => globalThis.Bun.gc(true)
  v8.setFlagsFromString('--expose-gc')
  return vm.runInNewContext('gc')
}

// Tests of what it does not have say so, and are left out there.
const WINDOWS = process.platform === 'win32'

// Starts a server before the tests of a file and stops it after them. Its fields are filled in by then. Without a `client`
// nothing of the library is there that a test has not made. With `http` the URL is that of a gateway before the server.
function shared({ password, client = true, http = HTTP && password === undefined } = {}) {
  const context = { server: undefined, gateway: undefined, redis: undefined, client: undefined, url: undefined }
  before(async () => {
    context.server = await Server.start({ args: password === undefined ? [] : ['--requirepass', password] })
    context.url = context.server.url
    context.redis = await Connection.open(context.server.port)
    if (password !== undefined) {
      context.url = context.url.replace('//', `//:${password}@`)
      await context.redis.send('AUTH', password)
    }
    if (http) {
      context.gateway = await Gateway.start(context.server.port)
      context.url = context.gateway.url
    }
    if (client) context.client = await Client.connect(context.url)
  })
  after(async () => {
    await context.client?.close()
    context.redis?.end()
    await context.gateway?.stop()
    await context.server?.stop()
  })
  return context
}

let last = 0
function freshName() {
  last += 1
  return `test:${process.pid}:${last}`
}

// Waits until `condition` is true or not null; asks often, because there is nothing to be awaited.
async function until(condition, what = condition) {
  const end = Date.now() + LIMIT
  for (;;) {
    const value = await condition()
    if (value !== false && value !== null && value !== undefined) return value
    if (Date.now() > end) throw new Error(`did not come true in ${LIMIT} ms: ${what}`)
    await sleep(1)
  }
}

// Waits for an event of an EventTarget.
function aborted(signal) {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(signal.reason)
    else signal.addEventListener('abort', () => resolve(signal.reason), { once: true })
  })
}

// Runs a script in a process of its own, with `redlatch` and the URL in reach; resolves with what became of it.
function run(url, script, { flags = [], env = {} } = {}) {
  const code = `'use strict'
    const redlatch = require(${JSON.stringify(PACKAGE)})
    const { Client } = redlatch;
    ${script}`
  return runNode([...flags, '-e', code], { ...env, REDLATCH_URL: url })
}

function runNode(args, env = {}) {
  const options = { env: { ...process.env, NO_COLOR: '1', ...env }, timeout: LIMIT, killSignal: 'SIGKILL' }
  return new Promise((resolve) => {
    const began = performance.now()
    execFile(process.execPath, args, options, (error, stdout, stderr) => {
      const code = error === null ? 0 : (error.code ?? null)
      resolve({ code, signal: error?.signal ?? null, stdout, stderr, took: performance.now() - began })
    })
  })
}

module.exports = { PACKAGE, THREAD, WASM, WINDOWS, Connection, Server, aborted, collector, freshName, run, runNode, shared, test, until }
