'use strict'
// A holder is told when its lock is lost.

const assert = require('node:assert/strict')
const { AsyncLocalStorage } = require('node:async_hooks')
const { once } = require('node:events')
const { setTimeout: sleep } = require('node:timers/promises')
const { Client, LockLostError, UnavailableError } = require('../index.js')
const { Server, aborted, collector, freshName, shared, test, until } = require('./support/index.js')

const context = shared()
// A watchdog that renews every ten minutes, which is longer than until() waits: the server tells of a loss, not a renewal.
const RARELY = { watchdogLease: '30m' }

// Deletes the key behind the hold's back and checks that the hold is told.
async function deleted(hold) {
  const { signal } = hold
  assert.equal(await context.redis.send('DEL', hold.name), 1)
  await until(() => signal.aborted)
  const error = signal.reason
  assert.ok(error instanceof LockLostError)
  assert.deepEqual([error.reason, error.lockName, error.code], ['deleted', hold.name, 'ERR_REDLATCH_LOST'])
  assert.equal(hold.isHeld, false)
  assert.equal(hold.remaining, 0)
  assert.throws(() => hold.check(), LockLostError)
  assert.equal(await hold.release(), false)
}

test('deleted after acquire', async () => {
  await deleted(await context.client.lock(freshName(), RARELY).acquire())
})

test('deleted after a renewal', async () => {
  const hold = await context.client.lock(freshName(), { watchdogLease: 30_000 }).acquire()
  const remaining = () => context.redis.send('PTTL', hold.name)
  let least = await remaining()
  await until(async () => {
    const now = await remaining()
    const renewed = now > least
    least = now
    return renewed
  }, 'a renewal')
  const began = performance.now()
  await deleted(hold)
  assert.ok(performance.now() - began < 9000, 'the next renewal, in 10 s, would find it too')
})

test('a key that has not released what ran out is told so', async () => {
  const lock = context.client.lock(freshName())
  const hold = await lock.acquire({ key: 1, lease: 200 })
  await aborted(hold.signal)
  await assert.rejects(lock.acquire({ key: 1 }), error => {
    assert.deepEqual([error.reason, error instanceof LockLostError], ['expired', true])
    return /has to be released first/.test(error.message)
  })
  assert.equal(await hold.release(), false)
  await (await lock.acquire({ key: 1 })).release()
})

test('deleted after re-entry', async () => {
  const outer = await context.client.lock(freshName(), RARELY).acquire()
  const inner = await outer.reenter()
  const innerTold = aborted(inner.signal)
  await deleted(outer)
  await innerTold
  assert.equal(await inner.release(), false)
})

test('deleted after a partial release', async () => {
  const outer = await context.client.lock(freshName(), RARELY).acquire()
  await (await outer.reenter()).release()
  await deleted(outer)
})

test('deleted after a reconnect', async () => {
  const hold = await context.client.lock(freshName(), RARELY).acquire()
  const before = context.client.stats()
  await context.redis.send('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
  await until(() => context.client.stats().renewed > before.renewed, 'the renewal after the reconnect')
  assert.ok(context.client.stats().connects > before.connects)
  assert.ok(hold.isHeld)
  await deleted(hold)
})

test('stolen: another owner lies at the name', async () => {
  const hold = await context.client.lock(freshName()).acquire()
  const told = aborted(hold.signal)
  await context.redis.send('DEL', hold.name)
  await context.redis.send('HSET', hold.name, 'somebody:1', '1')
  const error = await told
  assert.ok(['stolen', 'deleted'].includes(error.reason))
  assert.equal(await hold.release(), false)
  assert.equal(await context.redis.send('EXISTS', hold.name), 1)
})

test('a fixed lease ends by itself', async () => {
  const hold = await context.client.lock(freshName(), { lease: 150 }).acquire()
  assert.equal((await aborted(hold.signal)).reason, 'expired')
  assert.equal(await hold.release(), false)
})

test('a server that is gone for longer than the lease', async () => {
  const server = await Server.start()
  const client = await Client.connect(server.url)
  const hold = await client.lock(freshName(), { watchdogLease: 5000 }).acquire()
  await server.stop()
  assert.equal((await aborted(hold.signal)).reason, 'unreachable')
  assert.equal(await hold.release(), false)
  await client.close(500)
})

test('the client tells every loss once', async () => {
  const client = await Client.connect(context.url)
  const told = []
  client.on('lost', (error) => told.push(error))
  const hold = await client.lock(freshName()).acquire()
  await context.redis.send('DEL', hold.name)
  assert.equal(await hold.release(), false)
  await hold[Symbol.asyncDispose]()
  await until(() => told.length > 0)
  assert.equal(told.length, 1)
  assert.deepEqual([told[0].constructor, told[0].lockName, told[0].reason], [LockLostError, hold.name, 'deleted'])
  await client.close()
})

test('leaving the scope of a lost hold does not throw, and is told by the client', async () => {
  const client = await Client.connect(context.url)
  const hold = await client.lock(freshName()).acquire()
  const told = once(client, 'lost')
  await context.redis.send('DEL', hold.name)
  await hold[Symbol.asyncDispose]()
  assert.equal((await told)[0].lockName, hold.name)
  await client[Symbol.asyncDispose]()
})

test('using rejects when the lock was lost', async () => {
  const lock = context.client.lock(freshName())
  await assert.rejects(
    lock.using(async (hold) => {
      await context.redis.send('DEL', lock.name)
      await aborted(hold.signal)
    }),
    LockLostError,
  )
})

test('using keeps the error of its function, with the loss as the cause', async () => {
  const lock = context.client.lock(freshName())
  const lose = async (error) =>
    lock
      .using(async (hold) => {
        await context.redis.send('DEL', lock.name)
        await aborted(hold.signal)
        throw error
      })
      .catch((thrown) => thrown)

  const plain = new Error('mine')
  assert.equal(await lose(plain), plain)
  assert.ok(plain.cause instanceof LockLostError)
  assert.equal(Object.keys(plain).includes('cause'), false)

  const caused = new Error('mine', { cause: 'known' })
  assert.equal((await lose(caused)).cause, 'known')
  assert.equal(await lose('no error'), 'no error')
  assert.ok((await lose(Object.freeze(new Error('frozen')))) instanceof Error)
})

test('the loss of an inner lock hides no loss of the outer one', async () => {
  const [outer, inner] = [freshName(), freshName()].map((name) => context.client.lock(name))
  const using = outer.using((held) =>
    inner.using(async (hold) => {
      await context.redis.send('DEL', outer.name, inner.name)
      await Promise.all([aborted(held.signal), aborted(hold.signal)])
    }),
  )
  await assert.rejects(using, (error) => error.lockName === inner.name && error.cause?.lockName === outer.name)
})

test('a fetch that is given the signal ends with the loss', async () => {
  const lock = context.client.lock(freshName())
  const thrown = await lock
    .using(async ({ signal }) => {
      await context.redis.send('DEL', lock.name)
      await new Promise((_, reject) => {
        if (signal.aborted) reject(signal.reason)
        else signal.addEventListener('abort', () => reject(signal.reason))
      })
    })
    .catch((error) => error)
  assert.ok(thrown instanceof LockLostError)
  assert.equal(thrown.cause, undefined)
})

test('listeners of the signal run in the context that asked for it', async () => {
  const store = new AsyncLocalStorage()
  const hold = await context.client.lock(freshName()).acquire()
  const seen = store.run('mine', () => {
    const { signal } = hold
    return new Promise((resolve) => signal.addEventListener('abort', () => resolve(store.getStore())))
  })
  await context.redis.send('DEL', hold.name)
  assert.equal(await seen, 'mine')
  await hold.release()
})

test('a released hold is not told anything', async () => {
  const lock = context.client.lock(freshName())
  const first = await lock.acquire()
  const { signal } = first
  await first.release()
  const second = await lock.acquire()
  const told = aborted(second.signal)
  await context.redis.send('DEL', lock.name)
  await told
  assert.equal(signal.aborted, false)
  await second.release()
})

test('a signal stays the same one, and knows of a loss that came before it was asked for', async () => {
  const lock = context.client.lock(freshName())
  const kept = await lock.acquire()
  const { signal } = kept
  assert.equal(kept.signal, signal)
  await kept.release()
  assert.equal(kept.signal, signal)
  assert.equal(signal.aborted, false)
  const lost = await lock.acquire()
  const told = new Promise((resolve) => context.client.once('lost', resolve))
  await context.redis.send('DEL', lock.name)
  const loss = await told
  assert.equal(lost.signal.reason, loss)
  assert.throws(() => lost.check(), loss)
  assert.equal(await lost.release(), false)
  assert.equal(lost.signal.reason, loss)
  assert.equal(lost.name, lock.name)
})

test('a hold survives an event loop that is blocked for three leases', async () => {
  const lease = 5000
  const hold = await context.client.lock(freshName(), { watchdogLease: lease }).acquire()
  const before = context.client.stats().renewed
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3 * lease)
  assert.equal(hold.isHeld, true)
  assert.ok(context.client.stats().renewed > before)
  await new Promise(setImmediate)
  assert.equal(hold.signal.aborted, false)
  assert.equal(await hold.release(), true)
})

test('a loss during a blocked event loop is seen at once by isHeld and check', async () => {
  const hold = await context.client.lock(freshName(), { lease: 200 }).acquire()
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400)
  assert.equal(hold.isHeld, false)
  assert.throws(() => hold.check(), (error) => error.reason === 'expired')
  assert.equal((await aborted(hold.signal)).reason, 'expired')
  await hold.release()
})

test('a release that the server does not confirm is an error, once and in every scope', async () => {
  const server = await Server.start()
  const client = await Client.connect(server.url, { outage: 200 })
  const [first, second] = await Promise.all([client.lock('a').acquire(), client.lock('b').acquire()])
  await assert.rejects(
    client.lock('c').using(() => server.stop()),
    UnavailableError,
  )
  await assert.rejects(first.release(), UnavailableError)
  await assert.rejects(first.release(), UnavailableError)
  await assert.rejects(second[Symbol.asyncDispose](), UnavailableError)
  await client.close(0)
})

test('a loss that comes together with the grant is told', async () => {
  const client = await Client.connect(context.url)
  const lock = client.lock(freshName())
  const told = []
  client.on('lost', ({ reason }) => told.push(reason))
  await lock.forceRelease()
  const [hold, forced] = await Promise.all([lock.acquire(), lock.forceRelease()])
  // The server may have executed them in this order only.
  assert.equal(forced, true)
  assert.equal((await aborted(hold.signal)).reason, 'forced')
  await until(() => told.length === 1)
  assert.deepEqual(told, ['forced'])
  await client.close()
})

test('a call of a client that is garbage-collected has its answer', async () => {
  const gc = collector()
  const ask = async (call) => {
    const client = await Client.connect(context.url)
    await context.redis.send('CLIENT', 'PAUSE', '1500', 'ALL')
    return { answer: call(client) }
  }
  for (const call of [(client) => client.lock(freshName()).holders(), (client) => client.close()]) {
    const { answer } = await ask(call)
    let settled = false
    void answer.then(() => (settled = true))
    await until(() => {
      gc()
      return settled
    })
    assert.deepEqual(await answer, [])
  }
})

test('a released hold is collected, although the listener of its signal knows it', async () => {
  const gc = collector()
  const weak = await (async () => {
    const hold = await context.client.lock(freshName()).acquire()
    hold.signal.addEventListener('abort', () => hold.check())
    await hold.release()
    return new WeakRef(hold)
  })()
  await until(() => {
    gc()
    return weak.deref() === undefined
  })
})

// Becomes the holder of a lock and keeps only what `use` gives of the hold.
async function leads(client, use) {
  return use(await client.lock(freshName(), { watchdogLease: 5000 }).acquire())
}

test('a signal whose Hold was garbage-collected is aborted when the lease ends', async () => {
  const gc = collector()
  const client = await Client.connect(context.url)
  const told = []
  client.on('lost', ({ reason }) => told.push(reason))
  const kept = await leads(client, (hold) => hold.signal)
  // With a listener: without one, Node.js 24 forgets an abort when the source is collected after it.
  const derived = await leads(client, (hold) => AbortSignal.any([hold.signal, new AbortController().signal]))
  derived.addEventListener('abort', () => {})
  let heard
  await leads(client, ({ signal }) => signal.addEventListener('abort', () => (heard = signal.reason)))
  await leads(client, () => {})
  await until(() => {
    gc()
    return kept.aborted && derived.aborted && heard !== undefined && told.length === 4
  }, 'every signal is aborted')
  for (const loss of [kept.reason, derived.reason, heard]) {
    assert.ok(loss instanceof LockLostError)
    assert.equal(loss.reason, 'expired')
  }
  assert.deepEqual(told, ['expired', 'expired', 'expired', 'expired'])
  await client.close()
})

test('a signal whose Hold was garbage-collected is aborted when the key is deleted', async () => {
  const gc = collector()
  const client = await Client.connect(context.url)
  let abandoned = false
  client.on('event', ({ kind }) => (abandoned ||= kind === 'abandoned'))
  const name = freshName()
  const { signal } = await client.lock(name).acquire()
  await until(() => {
    gc()
    return abandoned
  })
  assert.equal(signal.aborted, false)
  await context.redis.send('DEL', name)
  assert.equal((await aborted(signal)).reason, 'deleted')
  await client.close()
})

test('many users of one signal bring no warning of a leak', async () => {
  const warned = []
  const listener = (warning) => warned.push(warning)
  process.on('warning', listener)
  const hold = await context.client.lock(freshName()).acquire()
  const users = Array.from({ length: 30 }, () => sleep(60_000, null, { signal: hold.signal }).catch(({ name }) => name))
  await context.redis.send('DEL', hold.name)
  assert.deepEqual(new Set(await Promise.all(users)), new Set(['AbortError']))
  await new Promise(setImmediate)
  process.off('warning', listener)
  assert.deepEqual(warned, [])
  await hold.release()
})
