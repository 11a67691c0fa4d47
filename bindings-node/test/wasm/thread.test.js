'use strict'
// The WebAssembly part on a thread of its own: its end, and what it does not take. Run with REDLATCH_WASM=thread, with which most of
// the suite runs as well.

const assert = require('node:assert/strict')
const { mkdtempSync, rmSync, writeFileSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { pathToFileURL } = require('node:url')
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
    const thread = started.at(-1)
    thread.worker = this
    this.on('exit', () => (thread.ended = true))
  }
}

const { Client, InternalError, InvalidArgumentError } = require('../../index.js')
const { PACKAGE, aborted, collector, freshName, runNode, shared, test, until } = require('../support/index.js')

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
  await assert.rejects(hold.extend(1000), FAILED)
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
  // There is no such object: the thread fails with it.
  started.at(-1).port.postMessage([[1, 1, -1, 'method', []]])
  assert.throws(() => held.client.stats(), /its thread has ended; its holds count as lost/)
  await hasEnded(held)
})

// Runs a program that locks once, as an ES module without a file, with a file that Node.js loads before.
async function runWith(first) {
  const folder = mkdtempSync(join(tmpdir(), 'redlatch-thread-'))
  const file = join(folder, 'first.cjs')
  writeFileSync(file, first)
  const program = `
    import { Client } from ${JSON.stringify(pathToFileURL(join(PACKAGE, 'index.mjs')).href)}
    const client = await Client.connect()
    console.log(await client.lock('a').using((hold) => hold.isHeld))
    await client.close()`
  try {
    const words = ['--import', pathToFileURL(file).href, '--input-type=module', '-e', program]
    return await runNode(words, { REDLATCH_URL: context.url, NODE_OPTIONS: `--require ${file}` })
  } finally {
    rmSync(folder, { recursive: true })
  }
}

test('a client that is garbage-collected leaves the thread to the others', async () => {
  const collect = collector()
  const client = await Client.connect(context.url)
  const hold = await client.lock(freshName()).acquire()
  const { worker } = started.at(-1)
  let gone = false
  const registry = new FinalizationRegistry(() => (gone = true))
  await (async () => {
    const other = await Client.connect(context.url)
    registry.register(other)
    await other.close()
  })()
  await until(() => {
    collect()
    return gone
  })
  const next = await Client.connect(context.url)
  assert.equal(started.at(-1).worker, worker)
  assert.equal(hold.isHeld, true)
  assert.equal(await hold.release(), true)
  await Promise.all([client.close(), next.close()])
})

test('a program without a file, and files that Node.js loads first, do no harm', async () => {
  const { code, stdout, stderr } = await runWith('globalThis.first = true')
  assert.deepEqual([code, stdout, stderr], [0, 'true\n', ''])
})

test('a thread that cannot begin is an error', async () => {
  const { code, stderr } = await runWith("if (!require('node:worker_threads').isMainThread) throw new Error('not here')")
  assert.equal(code, 1)
  // Its port tells of its end, mostly; else the limit ends the wait.
  assert.match(stderr, /InternalError: .*its thread (has ended|does not answer)/)
})

test('the environment of the program is asked for the URL, as it is now', async () => {
  const program = `
    const { Client } = require(${JSON.stringify(PACKAGE)})
    Client.connect().then(async (client) => {
      await client.close()
      delete process.env.REDLATCH_URL
      await Client.connect().catch((error) => console.log(error.kind))
    })`
  const { stdout } = await runNode(['-e', program], { REDLATCH_URL: context.url })
  assert.equal(stdout, 'invalid_argument\n')
})

test('the last client that is garbage-collected takes the thread along, when it owes nothing', async () => {
  const collect = collector()
  const name = freshName()
  // It is given up before its answer comes, so the thread gives the permits back.
  await (async () => {
    const other = await Client.connect(context.url)
    const seats = other.plainSemaphore(name)
    await seats.trySetPermits(5)
    await context.redis.send('CLIENT', 'PAUSE', '400', 'WRITE')
    const controller = new AbortController()
    const taken = seats.acquire(2, { signal: controller.signal })
    setImmediate(() => controller.abort())
    await assert.rejects(taken, { name: 'AbortError' })
  })()
  const before = started.length
  await until(() => {
    collect()
    return started.at(-1).ended
  })
  assert.equal(await context.redis.send('GET', name), '5')
  const client = await Client.connect(context.url)
  await client.lock(freshName()).using((hold) => assert.equal(hold.isHeld, true))
  assert.equal(started.length, before + 1)
  await client.close()
})

test('a client that is refused leaves no thread', async () => {
  const collect = collector()
  // The clients of the tests before have to be gone.
  await until(() => {
    collect()
    return started.every(({ ended }) => ended)
  })
  const before = started.length
  assert.throws(() => new Client(context.url, { unheardOf: 1 }), InvalidArgumentError)
  assert.equal(started.length, before + 1)
  await until(() => started.at(-1).ended)
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
