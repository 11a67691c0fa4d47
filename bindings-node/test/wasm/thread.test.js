'use strict'
// The WebAssembly part on a thread of its own: its end, and what it does not take. Run with REDLATCH_WASM=thread, with which most of
// the suite runs as well.

const assert = require('node:assert/strict')
const { once } = require('node:events')
const threads = require('node:worker_threads')

// Each thread that the package starts, and the port to it.
const started = []
const { MessageChannel, Worker } = threads
threads.MessageChannel = class extends MessageChannel {
  constructor() {
    super()
    started.push({ port: this.port1 })
  }
}
threads.Worker = class extends Worker {
  constructor(...given) {
    super(...given)
    started.at(-1).worker = this
  }
}

const { Client, InternalError, InvalidArgumentError } = require('../../index.js')
const { PACKAGE, aborted, freshName, runNode, shared, test } = require('../support/index.js')

const context = shared({ client: false })
const FAILED = (error) => error instanceof InternalError && /its holds count as lost, open a new client/.test(error.message)

async function heldAndAwaited() {
  const client = await Client.connect(context.url)
  const name = freshName()
  const hold = await client.lock(name).acquire({ lease: 2000 })
  return { client, name, hold, waiting: client.lock(name).acquire() }
}

// All that a client says once its thread has ended.
async function hasEnded({ client, name, hold, waiting }) {
  await assert.rejects(waiting, FAILED)
  const reason = await aborted(hold.signal)
  assert.deepEqual([reason.kind, reason.reason], ['lost', 'unreachable'])
  assert.deepEqual([hold.isHeld, hold.remaining, hold.holdCount], [false, 0, 0])
  assert.throws(() => hold.check(), reason)
  await assert.rejects(hold.release(), FAILED)
  await assert.rejects(client.lock(name).acquire(), FAILED)
  assert.throws(() => client.stats(), FAILED)
  assert.throws(() => client.latch(name), FAILED)
  await assert.rejects(client.close(), FAILED)
}

test('the clients of a process share one thread, which begins with the first', async () => {
  assert.deepEqual(started, [])
  const clients = await Promise.all([1, 2].map(() => Client.connect(context.url)))
  assert.equal(started.length, 1)
  await Promise.all(clients.map((client) => client.close()))
})

test('the end of the thread fails its calls, loses its holds, and the next client gets another one', async () => {
  const held = await heldAndAwaited()
  const before = started.length
  await started.at(-1).worker.terminate()
  await hasEnded(held)
  const next = await Client.connect(context.url)
  assert.equal(started.length, before + 1)
  // Nobody releases the lock that the thread has left in Redis: it ends with its lease.
  await next.lock(held.name).using((hold) => assert.equal(hold.isHeld, true))
  await next.close()
})

test('a thread that ends while a call waits for its reply is no hang', async () => {
  const held = await heldAndAwaited()
  held.waiting.catch(() => undefined)
  const { port, worker } = started.at(-1)
  const ended = once(worker, 'error')
  // There is no such object: the thread fails with it.
  port.postMessage([[1, 1, -1, 'method', []]])
  assert.throws(() => held.client.stats(), FAILED)
  await hasEnded(held)
  assert.match((await ended)[0].message, /undefined/)
})

test('a stream of the program is refused', () => {
  const made = () => new Client(context.url, { connect: () => undefined })
  assert.throws(made, (error) => error instanceof InvalidArgumentError && /belong to a thread.*REDLATCH_WASM=1/.test(error.message))
})

test('a refused call tells all options, those of JavaScript too', async () => {
  const client = await Client.connect(context.url)
  const lock = client.lock(freshName())
  await assert.rejects(lock.acquire({ unheardOf: 1 }), /"unheardOf".*lease.*signal/)
  await lock.using(async (hold) => {
    await assert.rejects(hold.reenter({ unheardOf: 1 }), /"unheardOf".*lease.*signal/)
    await assert.rejects(lock.acquire({ wait: -1 }), /wait is -1/)
  })
  assert.equal(client.stats().waiting, 0)
  await client.close()
})

test('a call that was refused keeps no program alive', async () => {
  const program = `
    const { Client } = require(${JSON.stringify(PACKAGE)})
    Client.connect().then(async (client) => {
      await client.lock('a').acquire({ wait: -1 }).catch((error) => console.log(error.kind))
      await client.lock('a').acquire({ unheardOf: 1 }).catch((error) => console.log(error.kind))
    })`
  const { code, stdout } = await runNode(['-e', program], { REDLATCH_URL: context.url })
  assert.deepEqual([code, stdout], [0, 'invalid_argument\ninvalid_argument\n'])
})
