'use strict'
// Waiting can be given up at any moment, and nothing stays behind.

const assert = require('node:assert/strict')
const { setTimeout: sleep } = require('node:timers/promises')
const { getEventListeners } = require('node:events')
const { Client, LockTimeoutError } = require('../index.js')
const { Connection, freshName, shared, test, until } = require('./support/index.js')

const context = shared()

test('a signal that is aborted already: nothing is sent', async () => {
  const reason = new Error('no')
  const before = context.client.stats().calls
  const signal = AbortSignal.abort(reason)
  await assert.rejects(context.client.lock('a').acquire({ signal }), (error) => error === reason)
  assert.equal(context.client.stats().calls, before)
})

test('aborted while waiting: rejected with the reason, untouched', async () => {
  const lock = context.client.lock(freshName())
  const hold = await lock.acquire()
  for (const reason of [new Error('mine'), 'text', 0, null]) {
    const controller = new AbortController()
    const waiting = lock.acquire({ signal: controller.signal })
    await until(() => context.client.stats().waiting === 1)
    controller.abort(reason)
    await assert.rejects(waiting, (error) => error === reason)
    assert.equal(getEventListeners(controller.signal, 'abort').length, 0)
  }
  const controller = new AbortController()
  const waiting = lock.using({ signal: controller.signal }, () => assert.fail('not called'))
  controller.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  await hold.release()
  await until(() => context.client.stats().waiting === 0)
  assert.equal(await lock.isLocked(), false)
})

test('AbortSignal.timeout limits the wait', async () => {
  const lock = context.client.lock(freshName())
  const hold = await lock.acquire()
  await assert.rejects(lock.acquire({ signal: AbortSignal.timeout(20) }), { name: 'TimeoutError' })
  await hold.release()
})

test('the handler that the caller set on the signal stays, and one signal serves many calls', async () => {
  const lock = context.client.lock(freshName())
  const controller = new AbortController()
  let called = 0
  controller.signal.onabort = () => (called += 1)
  const warned = []
  const listener = (warning) => warned.push(warning)
  process.on('warning', listener)
  for (let round = 0; round < 30; round += 1) {
    await (await lock.acquire({ signal: controller.signal })).release()
  }
  assert.equal(getEventListeners(controller.signal, 'abort').length, 1)
  controller.abort()
  assert.equal(called, 1)
  await new Promise(setImmediate)
  process.off('warning', listener)
  assert.deepEqual(warned, [])
})

test('one signal ends many calls, without a warning of a leak', async () => {
  const [lock, controller, warned] = [context.client.lock(freshName()), new AbortController(), []]
  const listener = (warning) => warned.push(warning)
  process.on('warning', listener)
  const hold = await lock.acquire()
  const waiting = Array.from({ length: 30 }, () => lock.acquire({ signal: controller.signal }))
  await until(() => context.client.stats().waiting === 30)
  controller.abort()
  const ended = await Promise.allSettled(waiting)
  assert.deepEqual(new Set(ended.map(({ reason }) => reason)), new Set([controller.signal.reason]))
  assert.equal(getEventListeners(controller.signal, 'abort').length, 0)
  process.off('warning', listener)
  assert.deepEqual(warned, [])
  await hold.release()
})

test('a listener that stops the event keeps no call waiting', async () => {
  const [lock, controller] = [context.client.lock(freshName()), new AbortController()]
  const hold = await lock.acquire()
  controller.signal.addEventListener('abort', (event) => event.stopImmediatePropagation())
  const waiting = lock.acquire({ signal: controller.signal })
  await until(() => context.client.stats().waiting === 1)
  controller.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  await hold.release()
})

test('a signal of a package that came before Node.js had any', async () => {
  class OldSignal extends EventTarget {
    aborted = false
    abort() {
      this.aborted = true
      this.dispatchEvent(new Event('abort'))
    }
  }
  const lock = context.client.lock(freshName())
  const hold = await lock.acquire()
  const signal = new OldSignal()
  const waiting = lock.acquire({ signal })
  await until(() => context.client.stats().waiting === 1)
  signal.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  await assert.rejects(lock.acquire({ signal }), { name: 'AbortError' })
  await hold.release()
})

test('aborted after the lock is held: it stays held', async () => {
  const controller = new AbortController()
  const hold = await context.client.lock(freshName()).acquire({ signal: controller.signal })
  controller.abort()
  assert.equal(hold.isHeld, true)
  assert.equal(await hold.release(), true)
})

test('aborted in the same tick: rejected, and the lock is free', async () => {
  const lock = context.client.lock(freshName())
  const controller = new AbortController()
  const waiting = lock.acquire({ signal: controller.signal })
  controller.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  await (await lock.acquire({ wait: 10_000 })).release()
})

test('an abort that comes while the grant waits for the event loop releases it', async () => {
  const lock = context.client.lock(freshName())
  const controller = new AbortController()
  const before = context.client.stats().acquired
  const waiting = lock.acquire({ signal: controller.signal })
  const pause = new Int32Array(new SharedArrayBuffer(4))
  // The event loop is blocked until the engine has the grant, so it lies in the queue when the abort comes.
  while (context.client.stats().acquired === before) Atomics.wait(pause, 0, 0, 1)
  controller.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  await until(async () => !(await lock.isLocked()))
  assert.equal(context.client.stats().holds, 0)
})

test('an abort while entering again leaves the hold as it was', async () => {
  const hold = await context.client.lock(freshName()).acquire()
  const controller = new AbortController()
  const entering = hold.reenter({ signal: controller.signal })
  controller.abort()
  await assert.rejects(entering, { name: 'AbortError' })
  await until(async () => hold.holdCount === 1 && (await context.redis.send('HVALS', hold.name))[0] === '1')
  assert.equal(hold.isHeld, true)
  assert.equal(await hold.release(), true)
})

// A generator of numbers from 0 to 1 that can be run again (mulberry32).
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

test('10,000 random cancels leave no key and no subscription', async (t) => {
  const seed = Number(process.env.REDLATCH_TEST_SEED ?? Date.now() & 0xffff)
  t.diagnostic(`REDLATCH_TEST_SEED=${seed}`)
  const next = random(seed)
  const [first, second] = await Promise.all([Client.connect(context.url), Client.connect(context.url)])
  const prefix = freshName()
  const names = Array.from({ length: 40 }, (_, at) => `${prefix}:${at}`)
  let [granted, cancelled] = [0, 0]

  async function attempt(client) {
    const lock = client.lock(names[Math.floor(next() * names.length)])
    const controller = new AbortController()
    const waiting = lock.acquire({ signal: controller.signal })
    const when = next()
    if (when < 0.1) controller.abort()
    else if (when < 0.3) setImmediate(() => controller.abort())
    else setTimeout(() => controller.abort(), next() * 8)
    try {
      const hold = await waiting
      granted += 1
      if (next() < 0.2) await sleep(next() * 2)
      assert.equal(await hold.release(), true)
    } catch (error) {
      assert.equal(error.name, 'AbortError')
      cancelled += 1
    }
  }

  async function worker(client) {
    while (granted + cancelled < 10_000) await attempt(client)
  }
  await Promise.all([first, second].flatMap((client) => Array.from({ length: 50 }, () => worker(client))))
  t.diagnostic(`granted ${granted}, cancelled ${cancelled}`)
  assert.ok(granted > 100 && cancelled > 100)

  const redis = await Connection.open(context.server.port)
  const none = async (...command) => (await redis.send(...command, `*${prefix}*`)).length === 0
  await until(() => none('KEYS'), 'no key is left')
  await until(() => none('PUBSUB', 'CHANNELS'), 'no subscription is left')
  for (const client of [first, second]) {
    const { holds, waiting } = client.stats()
    assert.deepEqual([holds, waiting], [0, 0])
    await assert.doesNotReject(client.lock(names[0]).using({ wait: 10_000 }, () => {}), LockTimeoutError)
    await client.close()
  }
  redis.end()
})
