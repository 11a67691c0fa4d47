'use strict'
// Semaphores, seen by one client or two.

const assert = require('node:assert/strict')
const { inspect } = require('node:util')
const { Client, ForeignKindError, Hold, InvalidArgumentError, LockLostError, LockTimeoutError, Semaphore } = require('../index.js')
const { WASM, aborted, freshName, run, shared, test, until } = require('./support/index.js')

const context = shared()

// The free permits and the taken ones, as Redis has them.
async function counts(name) {
  const free = await context.redis.send('GET', name)
  return [Number(free), await context.redis.send('ZCARD', `{${name}}:timeout`)]
}

const waiting = (client, count) => until(() => client.stats().waiting === count)

test('fifty callers of two clients are never more than five inside', async () => {
  // No wait ends by a recheck: wake-ups have to come.
  const other = new Client(context.url, { recheck: '1h' })
  const own = new Client(context.url, { recheck: '1h' })
  const name = freshName()
  let [inside, most, done] = [0, 0, 0]
  const callers = Array.from({ length: 50 }, async (_, at) => {
    const gpus = (at % 2 === 0 ? own : other).semaphore(name, 5)
    for (let round = 0; round < 4; round += 1) {
      const permits = 1 + ((at + round) % 3)
      await gpus.using({ permits }, async (hold) => {
        inside += permits
        most = Math.max(most, inside)
        await new Promise(setImmediate)
        hold.check()
        inside -= permits
        done += 1
      })
    }
  })
  await Promise.all(callers)
  assert.ok(most >= 3 && most <= 5, `${most} were inside`)
  assert.deepEqual([done, await counts(name)], [200, [5, 0]])
  await Promise.all([own.close(), other.close()])
})

test('an acquisition takes as many permits as it asks for, and its hold gives all back', async () => {
  const gpus = context.client.semaphore(freshName(), { limit: 5, maxHold: '1h' })
  assert.ok(gpus instanceof Semaphore)
  assert.match(inspect(gpus), /^Semaphore \{ name: /)
  assert.deepEqual(await gpus.permits(), { available: 0, limit: 0 })

  const three = await gpus.acquire({ permits: 3 })
  assert.ok(three instanceof Hold)
  assert.deepEqual([three.name, three.isHeld, three.fencingToken], [gpus.name, true, undefined])
  assert.deepEqual(await gpus.permits(), { available: 2, limit: 5 })
  const one = await gpus.acquire({ lease: '10s' })
  const holders = await gpus.holders()
  assert.deepEqual(holders.map(({ count }) => count).sort(), [1, 3])
  assert.deepEqual([...new Set(holders.map(({ process: its }) => its.pid))], [process.pid])

  assert.equal(await three.release(), true)
  assert.deepEqual(await gpus.permits(), { available: 4, limit: 5 })
  assert.equal(await one.release(), true)
  assert.deepEqual([await counts(gpus.name), await gpus.holders()], [[5, 0], []])
})

test('a try takes what is free, or gives null', async () => {
  const gpus = context.client.semaphore(freshName(), 3)
  const two = await gpus.tryAcquire({ permits: 2 })
  assert.equal(await gpus.tryAcquire({ permits: 2 }), null)
  const one = await gpus.tryAcquire()
  assert.equal(await gpus.tryAcquire(), null)
  await assert.rejects(gpus.acquire({ wait: 0 }), LockTimeoutError)
  await assert.rejects(gpus.acquire({ wait: '20ms', permits: 2 }), LockTimeoutError)
  for (const hold of [one, two]) await hold.release()
  assert.deepEqual(await counts(gpus.name), [3, 0])
})

test('callers of one client come in their order, whatever they want', async () => {
  const gpus = context.client.semaphore(freshName(), 3)
  const first = await gpus.acquire({ permits: 2 })
  const order = []
  const all = gpus.acquire({ permits: 3 }).then((hold) => (order.push('all'), hold))
  await waiting(context.client, 1)
  const behind = gpus.acquire().then((hold) => (order.push('one'), hold))
  await waiting(context.client, 2)
  // One is free, and the caller that wants one waits behind the other.
  assert.equal((await gpus.permits()).available, 1)
  assert.deepEqual(order, [])
  await first.release()
  const hold = await all
  assert.deepEqual(order, ['all'])
  await hold.release()
  await (await behind).release()
})

test('in fair mode the callers of two clients come in their order', async () => {
  const other = new Client(context.url, { recheck: '1h' })
  const own = new Client(context.url, { recheck: '1h' })
  const name = freshName()
  const both = [own, other].map((client) => client.semaphore(name, { limit: 2, fair: true }))
  const held = [await both[0].acquire(), await both[0].acquire()]
  const order = []
  const turns = []
  for (const [at, permits] of [2, 1, 2].entries()) {
    turns.push(both[at % 2].using({ permits }, () => order.push(at)))
    await until(async () => (await both[0].waiters()).length === at + 1)
  }
  assert.deepEqual((await both[1].waiters()).map(({ count }) => count), [2, 1, 2])
  const controller = new AbortController()
  const aborted = both[1].acquire({ signal: controller.signal })
  await until(async () => (await both[0].waiters()).length === 4)
  controller.abort(new Error('mine'))
  await assert.rejects(aborted, /mine/)
  await until(async () => (await both[0].waiters()).length === 3)
  // One permit is free, and the first waiter wants two. A try of a client in which nobody waits overtakes nobody.
  await held[0].release()
  const third = new Client(context.url)
  assert.equal(await third.semaphore(name, { limit: 2, fair: true }).tryAcquire(), null)
  await (await third.semaphore(name, 2).tryAcquire()).release() // without fair mode it is free
  await third.close()
  await held[1].release()
  await Promise.all(turns)
  assert.deepEqual(order, [0, 1, 2])
  assert.deepEqual([await both[0].waiters(), await counts(name)], [[], [2, 0]])
  await assert.rejects(own.semaphore(name, 2).waiters(), (error) => {
    assert.ok(error instanceof InvalidArgumentError)
    assert.match(error.message, /give it the option fair/)
    return true
  })
  assert.throws(() => own.lock(name, { fair: true }), InvalidArgumentError)
  await Promise.all([own.close(), other.close()])
})

test('a release wakes the callers of both clients', async () => {
  const clients = [new Client(context.url, { recheck: '1h' }), new Client(context.url, { recheck: '1h' })]
  const name = freshName()
  const both = await clients[0].semaphore(name, 2).acquire({ permits: 2 })
  const calls = clients.flatMap((client) => Array.from({ length: 3 }, () => client.semaphore(name, 2).acquire()))
  for (const client of clients) await waiting(client, 3)
  await both.release()
  await Promise.all(calls.map(async (call) => (await call).release()))
  assert.deepEqual(await counts(name), [2, 0])
  for (const client of clients) await client.close()
})

test('a wait that is aborted leaves nothing', async () => {
  const gpus = context.client.semaphore(freshName(), 2)
  const held = await gpus.acquire({ permits: 2 })
  const controller = new AbortController()
  const call = gpus.acquire({ permits: 2, signal: controller.signal })
  const behind = gpus.acquire()
  await waiting(context.client, 2)
  const reason = new Error('mine')
  controller.abort(reason)
  await assert.rejects(call, (error) => error === reason)
  await waiting(context.client, 1)
  await held.release()
  await (await behind).release()
  await assert.rejects(gpus.acquire({ signal: AbortSignal.abort(reason) }), (error) => error === reason)
  // Granted or not when the signal comes: the permits are free.
  for (let round = 0; round < 20; round += 1) {
    const late = new AbortController()
    const racing = gpus.acquire({ permits: 2, signal: late.signal }).then((hold) => hold.release(), () => undefined)
    for (let turn = 0; turn < round % 5; turn += 1) await new Promise(setImmediate)
    late.abort()
    await racing
  }
  await (await gpus.acquire({ permits: 2 })).release()
  await until(async () => (await counts(gpus.name))[0] === 2)
  assert.deepEqual(await counts(gpus.name), [2, 0])
})

test('permits that are taken back are lost, and their holder hears of it', async () => {
  const name = freshName()
  const gpus = context.client.semaphore(name, { limit: 2, watchdogLease: '1s' })
  const hold = await gpus.acquire({ permits: 2 })
  const told = aborted(hold.signal)
  const other = new Client(context.url)
  assert.equal(await other.semaphore(name).forceRelease(), true)
  const loss = await told
  assert.ok(loss instanceof LockLostError)
  assert.deepEqual([loss.lockName, hold.isHeld, await hold.release()], [name, false, false])
  assert.ok(loss.message.startsWith(`semaphore "${name}": `), loss.message)
  assert.deepEqual(await counts(name), [2, 0])
  assert.equal(await other.semaphore(name).forceRelease(), false)
  await assert.rejects(
    gpus.using(async (held) => {
      const lost = aborted(held.signal)
      await other.semaphore(name).forceRelease()
      await lost
    }),
    LockLostError,
  )
  await other.close()
})

test('the number of permits can change', async () => {
  const gpus = context.client.semaphore(freshName(), 2)
  const two = await gpus.acquire({ permits: 2 })
  const call = gpus.acquire()
  await waiting(context.client, 1)
  assert.deepEqual(await gpus.setPermits(3), { available: 1, limit: 3 })
  const third = await call
  assert.deepEqual(await gpus.setPermits(1), { available: -2, limit: 1 })
  await two.release()
  assert.equal(await gpus.tryAcquire(), null)
  await third.release()
  await (await gpus.tryAcquire()).release()
  assert.deepEqual(await gpus.setPermits(0), { available: 0, limit: 0 })
})

test('using() gives the permits back when the function ends or throws', async () => {
  const gpus = context.client.semaphore(freshName(), 2)
  assert.equal(await gpus.using((hold) => hold.holdCount), 1)
  const inside = () => gpus.using(async () => (await gpus.permits()).available)
  assert.equal(await gpus.using({ wait: 1000, permits: 1 }, inside), 0)
  const error = new Error('mine')
  await assert.rejects(gpus.using({ permits: 2 }, () => Promise.reject(error)), (thrown) => thrown === error)
  assert.deepEqual(await counts(gpus.name), [2, 0])
})

test('`await using` gives permits back', async () => {
  const gpus = context.client.semaphore(freshName(), 2)
  const hold = await gpus.acquire({ permits: 2 })
  // As the compiler writes it: types.test.js runs the words themselves.
  await hold[Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')]()
  assert.deepEqual([hold.isHeld, await counts(gpus.name)], [false, [2, 0]])
})

test('the defaults of the client for locks leave semaphores alone', async () => {
  const client = new Client(context.url, { kind: 'simple', fencing: true, reentrant: true, watchdogLease: '5s' })
  const hold = await client.semaphore(freshName(), 1).acquire()
  assert.ok(hold.remaining > 1000 && hold.remaining <= 5000)
  await hold.release()
  await client.close()
})

test('wrong use is refused', async () => {
  const { client } = context
  const name = freshName()
  const gpus = client.semaphore(name, 2)
  const refused = (text) => (error) => {
    assert.ok(error instanceof InvalidArgumentError, `${error}`)
    assert.match(error.message, text)
    return true
  }
  const before = client.stats().calls
  await assert.rejects(gpus.acquire({ permits: 3 }), refused(/permits is 3, .* a limit of 2/))
  await assert.rejects(gpus.acquire({ permits: 0 }), refused(/permits is 0; give it a whole number from 1 to 1000/))
  for (const permits of [1.5, -1, 1001, true, NaN]) await assert.rejects(gpus.acquire({ permits }), refused(/permits/))
  await assert.rejects(gpus.acquire({ permit: 2 }), refused(/did you mean permits\?/))
  await assert.rejects(gpus.acquire({ token: 'a' }), refused(/token is given/))
  await assert.rejects(gpus.tryAcquire({ wait: 5 }), refused(/tryAcquire\(\) does not wait/))
  for (const owner of [{ key: 7 }, { hold: {} }, { context: true }]) {
    const text = /leave it out: each acquisition of a semaphore takes permits of its own/
    for (const call of [gpus.acquire(owner), gpus.tryAcquire(owner), gpus.using(owner, () => {})]) {
      await assert.rejects(call, refused(text))
    }
    assert.throws(() => client.semaphore(name, { limit: 2, ...owner }), InvalidArgumentError)
  }
  await assert.rejects(gpus.using({ permits: 1 }), refused(/give it a function/))
  for (const limit of [-1, 1.5, 2 ** 31, NaN]) {
    await assert.rejects(gpus.setPermits(limit), refused(/limit is .*; give .* 2147483647/))
    assert.throws(() => client.semaphore(name, limit), refused(/limit is .* 2147483647/))
  }
  for (const limit of [undefined, null, '7', true]) await assert.rejects(gpus.setPermits(limit), refused(/limit is .* a number/))
  assert.throws(() => client.semaphore(name, { limits: 2 }), refused(/did you mean limit\?/))
  assert.throws(() => client.semaphore(name, { kind: 'simple' }), refused(/a semaphore has its own/))
  for (const own of [{ fencing: true }, { fencingExpires: true }, { reentrant: true }]) {
    assert.throws(() => client.semaphore(name, own), refused(/leave it out for the kind semaphore/))
  }
  assert.throws(() => client.semaphore(name, '5'), refused(/give an object/))
  assert.throws(() => client.semaphore(''), InvalidArgumentError)
  assert.throws(() => client.semaphore(7), InvalidArgumentError)
  assert.throws(() => client.lock(name, { kind: 'semaphore' }), refused(/client\.semaphore\(name/))
  assert.throws(() => client.lock(name, { limit: 2 }), refused(/use a semaphore/))
  await assert.rejects(client.lock(name).acquire({ permits: 2 }), refused(/use a semaphore/))
  assert.equal(client.stats().calls, before)

  const lock = await client.lock(name).acquire()
  await assert.rejects(gpus.acquire(), ForeignKindError)
  await assert.rejects(gpus.permits(), ForeignKindError)
  await lock.release()
})

// The runner builds both for the suite on WebAssembly.
if (WASM) {
  test('permits of the native part are seen, and the other way round', async () => {
    const gpus = context.client.semaphore(freshName(), 3)
    const own = await gpus.acquire()
    const gate = context.client.lock(freshName())
    const closed = await gate.acquire()
    const other = run(
      context.url,
      `(async () => {
        const client = await Client.connect({ recheck: '1h' })
        const gpus = client.semaphore(${JSON.stringify(gpus.name)}, 3)
        const { available } = await gpus.permits()
        const two = await gpus.acquire({ permits: 2 })
        const all = gpus.acquire({ permits: 3 })
        while (client.stats().waiting < 1) await new Promise(setImmediate)
        console.log(available, (await gpus.holders()).map(({ count }) => count).sort().join())
        await client.lock(${JSON.stringify(gate.name)}).using(() => two.release())
        await (await all).release()
        await client.close()
      })()`,
      { env: { REDLATCH_WASM: '0' } },
    )
    await until(async () => (await gpus.permits()).available === 0)
    const [{ process: here }] = (await gpus.holders()).filter(({ process: its }) => its.pid === process.pid)
    const [{ process: there, count }] = (await gpus.holders()).filter(({ process: its }) => its.pid !== process.pid)
    assert.deepEqual([here.language, there.language, count], ['node', 'node', 2])
    await closed.release()
    await until(async () => (await gpus.permits()).available === 2)
    // The other waits for all three. This release wakes it.
    await own.release()
    const { code, stdout, stderr } = await other
    assert.deepEqual([code, stdout, stderr], [0, '2 1,2\n', ''])
    assert.deepEqual(await counts(gpus.name), [3, 0])
  })
}
