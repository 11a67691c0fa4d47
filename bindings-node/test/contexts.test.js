'use strict'
// The package works in a context of node:vm, as Jest's jsdom environment and Vitest's vmThreads load it: JavaScript's own
// objects are others there, and on Node.js 20 and 22 Symbol has neither dispose nor asyncDispose.

const assert = require('node:assert/strict')
const { readFileSync } = require('node:fs')
const { createRequire, isBuiltin } = require('node:module')
const { dirname } = require('node:path')
const vm = require('node:vm')
const { PACKAGE, freshName, shared, test, until } = require('./support/index.js')

const context = shared()

// Loads the package's JavaScript anew in a context of its own, with what a test runner puts into it.
function loadInContext() {
  const { process, AbortController, AbortSignal, EventTarget, Event, DOMException } = globalThis
  const sandbox = vm.createContext({ process, AbortController, AbortSignal, EventTarget, Event, DOMException })
  const loaded = new Map()
  const load = (file) => {
    if (isBuiltin(file) || file.endsWith('.node')) return require(file)
    if (loaded.has(file)) return loaded.get(file).exports
    const module = { exports: {} }
    loaded.set(file, module)
    const { resolve } = createRequire(file)
    const names = ['module', 'exports', 'require', '__dirname', '__filename']
    const run = vm.compileFunction(readFileSync(file, 'utf8'), names, { filename: file, parsingContext: sandbox })
    run(module, module.exports, (name) => load(resolve(name)), dirname(file), file)
    return module.exports
  }
  return load(require.resolve(PACKAGE))
}

test('a wait is ended by its signal in another context', { timeout: 60_000 }, async () => {
  const { Client } = loadInContext()
  const client = await Client.connect(context.url)
  const lock = client.lock(freshName())
  const hold = await lock.acquire()
  const controller = new AbortController()
  const waiting = [1, 2].map(() => lock.acquire({ signal: controller.signal }))
  await until(() => client.stats().waiting === 2)
  controller.abort()
  for (const wait of waiting) await assert.rejects(wait, (error) => error === controller.signal.reason)
  assert.equal(await hold.release(), true)
  const unused = new AbortController()
  await (await lock.acquire({ signal: unused.signal })).release()
  await client.close()
})

test('holds and clients are disposed of in another context', async () => {
  const { Client } = loadInContext()
  const client = await Client.connect(context.url)
  const lock = client.lock(freshName())
  const hold = await lock.acquire()
  await hold[Symbol.asyncDispose]()
  assert.equal(await lock.isLocked(), false)
  await client[Symbol.asyncDispose]()
  await assert.rejects(lock.acquire(), { code: 'ERR_REDLATCH_CLOSED' })
})
