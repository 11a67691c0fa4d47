'use strict'
// Plain semaphores and count-down latches, seen by one client or two.

const assert = require('node:assert/strict')
const { EventEmitter } = require('node:events')
const net = require('node:net')
const { inspect } = require('node:util')
const redlatch = require('../index.js')
const { Client, CountDownLatch, PlainPermit, PlainSemaphore } = redlatch
const { ClosedError, ForeignKindError, InvalidArgumentError, LockTimeoutError } = redlatch
const { THREAD, WASM, freshName, run, shared, test, until } = require('./support/index.js')

const context = shared()

const waiting = (client, count) => until(() => client.stats().waiting === count)

// The number in Redis; null without a key.
async function number(name) {
  const text = await context.redis.send('GET', name)
  return text === null ? null : Number(text)
}

// A client whose waiters are woken by messages and invalidations, or not at all.
const patient = () => new Client(context.url, { recheck: '1h' })

// Whether a promise is settled after all that the event loop has to do now.
async function isSettled(promise) {
  const unsettled = {}
  for (let turn = 0; turn < 3; turn += 1) await new Promise(setImmediate)
  return (await Promise.race([promise, unsettled])) !== unsettled
}

test('permits are set once, taken and given back', async () => {
  const seats = context.client.plainSemaphore(freshName())
  assert.ok(seats instanceof PlainSemaphore)
  assert.equal(inspect(seats), `PlainSemaphore { name: '${seats.name}' }`)
  assert.deepEqual([await seats.available(), await seats.tryAcquire()], [0, null])
  assert.deepEqual([await seats.trySetPermits(3), await seats.trySetPermits(9)], [true, false])

  const two = await seats.acquire(2)
  assert.ok(two instanceof PlainPermit)
  assert.deepEqual([two.name, two.permits], [seats.name, 2])
  assert.equal(inspect(two), `PlainPermit { name: '${seats.name}', permits: 2 }`)
  assert.equal(await seats.tryAcquire(2), null)
  const one = await seats.tryAcquire()
  assert.deepEqual([one.permits, await number(seats.name)], [1, 0])

  // A second release does nothing.
  assert.deepEqual(await Promise.all([two.release(), two.release()]), [undefined, undefined])
  await two.release()
  assert.equal(await number(seats.name), 2)
  await one[Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')]()
  assert.equal(await seats.available(), 3)
})

test('using() gives permits back when its function has ended', async () => {
  const client = await Client.connect(context.url)
  const seats = client.plainSemaphore(freshName())
  await seats.trySetPermits(3)
  const left = async (permit) => [permit.permits, await number(seats.name)]
  assert.deepEqual(await seats.using(left), [1, 2])
  assert.deepEqual(await seats.using(2, left), [2, 1])
  assert.deepEqual(await seats.using(3, { wait: 0 }, left), [3, 0])
  await seats.using((permit) => permit.release())
  const mine = new Error('mine')
  await assert.rejects(seats.using(2, () => Promise.reject(mine)), (error) => error === mine && error.cause === undefined)
  assert.equal(await number(seats.name), 3)

  await assert.rejects(seats.using(4, { wait: 0 }, left), LockTimeoutError)
  for (const wrong of [[], [2], [2, { wait: 0 }]]) await assert.rejects(seats.using(...wrong), /^InvalidArgumentError: using\(\) got .*; give it a function$/)
  // The permits stay taken where they cannot be given back, and the error says so once.
  const closing = seats.using(async (permit) => {
    await client.close()
    await permit.release()
  })
  await assert.rejects(closing, (error) => error instanceof ClosedError && error.cause === undefined)
  assert.equal(await number(seats.name), 2)
})

test('the number of permits can change, below 0 too', async () => {
  const seats = context.client.plainSemaphore(freshName())
  await seats.trySetPermits(2)
  assert.deepEqual([await seats.addPermits(3), await seats.addPermits(-6), await seats.available()], [5, -1, -1])
  assert.deepEqual([await seats.drain(), await number(seats.name)], [-1, 0])
  await seats.addPermits(4)
  assert.deepEqual([await seats.drain(), await seats.addPermits(0)], [4, 0])
  const call = seats.acquire(2)
  await waiting(context.client, 1)
  await seats.addPermits(2)
  await (await call).release()
  // Permits that nobody took are new ones.
  await seats.release()
  assert.equal(await seats.available(), 3)
})

test('callers of two clients are never more inside than there are permits', async () => {
  const clients = [patient(), patient()]
  const name = freshName()
  await clients[0].plainSemaphore(name).trySetPermits(5)
  let [inside, most, done] = [0, 0, 0]
  const callers = Array.from({ length: 20 }, async (_, at) => {
    const seats = clients[at % 2].plainSemaphore(name)
    for (let round = 0; round < 4; round += 1) {
      const permit = await seats.acquire(1 + ((at + round) % 3))
      inside += permit.permits
      most = Math.max(most, inside)
      await new Promise(setImmediate)
      inside -= permit.permits
      done += 1
      await permit.release()
    }
  })
  await Promise.all(callers)
  assert.ok(most >= 3 && most <= 5, `${most} were inside`)
  assert.deepEqual([done, await number(name)], [80, 5])
  for (const client of clients) await client.close()
})

test('a release by number, of another client, wakes who waits', async () => {
  const [own, other] = [patient(), patient()]
  const name = freshName()
  await own.plainSemaphore(name).trySetPermits(2)
  await own.plainSemaphore(name).acquire(2) // the object is not needed
  const calls = [own.plainSemaphore(name).acquire(), other.plainSemaphore(name).acquire()]
  for (const client of [own, other]) await waiting(client, 1)
  await other.plainSemaphore(name).release(2)
  await Promise.all(calls)
  assert.equal(await number(name), 0)
  await own.close()
  await other.close()
  // Permits that a caller has are the caller's: closing gives none back.
  assert.equal(await number(name), 0)
})

test('a wait ends with its limit or with its client', async () => {
  const client = await Client.connect(context.url)
  const [seats, ready] = [client.plainSemaphore(freshName()), client.latch(freshName())]
  await ready.trySetCount(1)
  const over = (name) => (error) => {
    assert.ok(error instanceof LockTimeoutError, `${error}`)
    assert.equal(error.lockName, name)
    return true
  }
  // The server answers within that time, or the error is another one.
  for (const wait of [0, 500, '500ms']) {
    const calls = [seats.acquire(2, { wait }), ready.wait({ wait })]
    await Promise.all(calls.map((call, at) => assert.rejects(call, over([seats, ready][at].name))))
  }
  const calls = [seats.acquire(1, { wait: null }), ready.wait({ wait: undefined }), ready.wait()]
  await waiting(client, 3)
  const ended = Promise.all(calls.map((call) => assert.rejects(call, ClosedError)))
  await client.close()
  await ended
  // Its stack begins with the line of the program. Bun's stacks end where a function awaits.
  const closed = (name) => (error) => error instanceof ClosedError && error.lockName === name && isOurs(error)
  const isOurs = ({ stack }) =>
    process.versions.bun !== undefined || /^ {4}at (?!.*\((?:node|ext):).*/m.exec(stack)[0].includes(__filename)
  for (const call of [() => seats.acquire(), () => seats.tryAcquire(), () => seats.release()]) {
    await assert.rejects(async () => await call(), closed(seats.name))
  }
  for (const call of [() => ready.count(), () => ready.wait()]) await assert.rejects(async () => await call(), closed(ready.name))
  assert.deepEqual([await number(seats.name), await number(ready.name)], [null, 1])
})

test('a wait that is aborted leaves nothing', async () => {
  const { client } = context
  const [seats, ready] = [client.plainSemaphore(freshName()), client.latch(freshName())]
  await ready.trySetCount(1)
  const controller = new AbortController()
  const { signal } = controller
  const reason = new Error('mine')
  const isReason = (error) => error === reason
  const calls = [seats.acquire(2, { signal }), ready.wait({ signal })]
  const behind = seats.acquire()
  await waiting(client, 3)
  const ended = Promise.all(calls.map((call) => assert.rejects(call, isReason)))
  controller.abort(reason)
  await ended
  await waiting(client, 1)
  await seats.trySetPermits(2)
  await (await behind).release()
  await assert.rejects(seats.acquire(1, { signal }), isReason)
  await assert.rejects(ready.wait({ signal }), isReason)
  assert.deepEqual([await number(seats.name), await ready.count()], [2, 1])
})

test('the reason of a signal keeps its stack', async () => {
  const mine = new InvalidArgumentError('mine')
  const { stack } = mine
  const options = { signal: AbortSignal.abort(mine) }
  const [seats, ready] = [context.client.plainSemaphore(freshName()), context.client.latch(freshName())]
  const semaphore = context.client.semaphore(freshName(), 1)
  const calls = [
    () => seats.acquire(1, options),
    () => ready.wait(options),
    () => semaphore.acquire(options),
    () => semaphore.tryAcquire(options),
    () => semaphore.using(options, () => {}),
  ]
  for (const call of calls) await assert.rejects(call, (error) => error === mine)
  await assert.rejects(semaphore.using(() => Promise.reject(mine)), (error) => error === mine)
  assert.equal(mine.stack, stack)
})

test('permits that are won when the signal comes are given back', async () => {
  const seats = context.client.plainSemaphore(freshName())
  await seats.trySetPermits(2)
  for (let round = 0; round < 40; round += 1) {
    const late = new AbortController()
    const racing = seats.acquire(2, { signal: late.signal }).then((permit) => permit.release(), () => undefined)
    for (let turn = 0; turn < round % 8; turn += 1) await (turn % 2 === 0 ? new Promise(setImmediate) : undefined)
    late.abort()
    await racing
  }
  await (await seats.acquire(2)).release()
  await until(async () => (await number(seats.name)) === 2)
})

test('a call that is aborted in its own tick keeps no permits, although it may be answered at once', async () => {
  const client = await Client.connect(context.url)
  const seats = client.plainSemaphore(freshName())
  await seats.trySetPermits(2)
  for (let round = 0; round < 20; round += 1) {
    await (await seats.acquire(2)).release()
    const controller = new AbortController()
    const call = seats.acquire(2, { signal: controller.signal })
    controller.abort()
    await assert.rejects(call, { name: 'AbortError' })
    await until(async () => (await number(seats.name)) === 2)
  }
  await client.close()
})

test('a call that is refused at once and aborted in its own tick gives back nothing', async () => {
  const client = patient()
  const seats = client.plainSemaphore(freshName())
  const asleep = seats.acquire()
  // Once that caller has looked for the last time and sleeps, the engine refuses without asking the server.
  await until(async () => {
    const controller = new AbortController()
    const before = client.stats().timeouts
    const call = seats.acquire(2, { wait: 0, signal: controller.signal })
    const atOnce = client.stats().timeouts > before
    controller.abort()
    await assert.rejects(call)
    return atOnce
  })
  await seats.release()
  await asleep
  assert.equal(await seats.available(), 0)
  await client.close()
})

test('permits whose grant waits for the event loop are given back by an abort', async () => {
  const client = await Client.connect(context.url, { direct: false })
  const seats = client.plainSemaphore(freshName())
  await seats.trySetPermits(2)
  const controller = new AbortController()
  const before = client.stats().calls
  if (WASM && !THREAD) {
    // The engine lives on the event loop: the abort comes between the answer and the microtask that tells of it.
    const { prototype } = net.Socket
    prototype.emit = function (event, ...rest) {
      const heard = EventEmitter.prototype.emit.call(this, event, ...rest)
      if (event === 'data' && client.stats().calls > before) {
        delete prototype.emit
        controller.abort()
      }
      return heard
    }
  }
  const call = seats.acquire(2, { signal: controller.signal })
  if (!WASM || THREAD) {
    const pause = new Int32Array(new SharedArrayBuffer(4))
    // The event loop is blocked until the engine has the grant, so it lies in the queue when the abort comes.
    while (client.stats().calls === before || client.stats().waiting > 0) Atomics.wait(pause, 0, 0, 1)
    controller.abort()
  }
  await assert.rejects(call, { name: 'AbortError' })
  await until(async () => (await number(seats.name)) === 2)
  await client.close()
})

test('a latch opens for the waiters of both clients at 0', async () => {
  const [own, other] = [patient(), patient()]
  const name = freshName()
  const [here, there] = [own.latch(name), other.latch(name)]
  assert.ok(here instanceof CountDownLatch)
  assert.equal(inspect(here), `CountDownLatch { name: '${name}' }`)
  assert.deepEqual([await here.trySetCount(3), await there.trySetCount(5), await there.count()], [true, false, 3])
  const waits = [here.wait(), here.wait({ wait: '1h' }), there.wait(), there.wait()]
  for (const client of [own, other]) await waiting(client, 2)
  assert.equal(await there.countDown(), 2)
  assert.deepEqual(await Promise.all(waits.map(isSettled)), [false, false, false, false])
  // It does not get below 0.
  assert.equal(await there.countDown(5), 0)
  assert.deepEqual(await Promise.all(waits), [undefined, undefined, undefined, undefined])

  // A late waiter goes on at once, and the latch can get a new count.
  await here.wait({ wait: 0 })
  assert.deepEqual([await here.countDown(), await here.count(), await number(name)], [0, 0, null])
  assert.deepEqual([await here.trySetCount(1), await there.count()], [true, 1])
  await own.close()
  await other.close()
})

test('a latch opens when its key is deleted', async () => {
  const client = patient()
  const ready = client.latch(freshName())
  for (const end of ['DEL', 'UNLINK']) {
    await ready.trySetCount(3)
    const wait = ready.wait()
    await waiting(client, 1)
    // It listens before it looks for the last time.
    const channel = `redisson_countdownlatch__channel__{${ready.name}}`
    await until(async () => (await context.redis.send('PUBSUB', 'NUMSUB', channel))[1] === 1)
    await context.redis.send(end, ready.name)
    await wait
  }
  await client.close()
})

test('another kind at the name is refused, and left alone', async () => {
  const name = freshName()
  const hold = await context.client.lock(name).acquire()
  const [seats, ready] = [context.client.plainSemaphore(name), context.client.latch(name)]
  const calls = [
    () => seats.acquire(),
    () => seats.tryAcquire(),
    () => seats.release(),
    () => seats.trySetPermits(1),
    () => seats.addPermits(1),
    () => seats.drain(),
    () => seats.available(),
    () => ready.trySetCount(1),
    () => ready.countDown(),
    () => ready.count(),
    () => ready.wait(),
  ]
  for (const call of calls) {
    await assert.rejects(call(), (error) => {
      assert.ok(error instanceof ForeignKindError, `${call}: ${error}`)
      assert.equal(error.lockName, name)
      return true
    })
  }
  hold.check()
  assert.equal(await hold.release(), true)
})

test('wrong use is refused', async () => {
  const { client } = context
  const name = freshName()
  const [seats, ready] = [client.plainSemaphore(name), client.latch(name)]
  const refused = (text) => (error) => {
    assert.ok(error instanceof InvalidArgumentError, `${error}`)
    assert.match(error.message, text)
    return true
  }
  const before = client.stats().calls
  for (const permits of [0, 2 ** 31]) {
    const text = new RegExp(`permits is ${permits}; give it a whole number from 1 to 2147483647`)
    for (const call of [seats.acquire(permits), seats.tryAcquire(permits), seats.release(permits)]) {
      await assert.rejects(call, refused(text))
    }
  }
  await assert.rejects(seats.trySetPermits(2 ** 31), refused(/permits is 2147483648; .* from 0 to 2147483647/))
  await assert.rejects(seats.addPermits(-(2 ** 31)), refused(/permits is .*2147483648; .* 2147483647/))
  for (const count of [0, 2 ** 31]) {
    await assert.rejects(ready.trySetCount(count), refused(new RegExp(`count is ${count}; .* from 1 to 2147483647`)))
    await assert.rejects(ready.countDown(count), refused(new RegExp(`by is ${count}; .* from 1 to 2147483647`)))
  }
  for (const wrong of [1.5, NaN, Infinity, '2', null, 2n, true, { wait: 5 }]) {
    for (const call of [seats.acquire(wrong), seats.release(wrong), seats.trySetPermits(wrong), seats.addPermits(wrong)]) {
      await assert.rejects(call, refused(/permits is .*; give it a whole number/))
    }
    for (const call of [ready.trySetCount(wrong), ready.countDown(wrong)]) await assert.rejects(call, refused(/a whole number/))
  }
  for (const call of [seats.trySetPermits(), seats.addPermits()]) await assert.rejects(call, refused(/permits is undefined/))
  for (const call of [seats.acquire(-1), seats.release(-1), seats.trySetPermits(-1)]) {
    await assert.rejects(call, refused(/permits is -1; give it a whole number that is not negative/))
  }
  for (const wait of [-1, 'soon', true, {}]) {
    await assert.rejects(seats.acquire(1, { wait }), refused(/wait/))
    await assert.rejects(ready.wait({ wait }), refused(/wait/))
  }
  for (const options of [{ lease: 5 }, { permits: 2 }]) {
    await assert.rejects(seats.acquire(1, options), refused(/there are wait and signal/))
    await assert.rejects(ready.wait(options), refused(/there are wait and signal/))
  }
  for (const options of [null, 5, 'soon']) await assert.rejects(ready.wait(options), refused(/give an object/))
  await assert.rejects(seats.acquire(1, { timeout: 5 }), refused(/"timeout" is no option/))
  await assert.rejects(ready.wait({ signal: {} }), refused(/an AbortSignal/))
  for (const wrong of ['', 'x'.repeat(1025), 7, undefined, '\ud800']) {
    assert.throws(() => client.plainSemaphore(wrong), refused(/name/))
    assert.throws(() => client.latch(wrong), refused(/name/))
  }
  assert.equal(client.stats().calls, before)
})

// The runner builds both for the suite on WebAssembly.
if (WASM) {
  test('permits and counts of the native part are seen, and the other way round', async () => {
    const [seats, ready] = [context.client.plainSemaphore(freshName()), context.client.latch(freshName())]
    await seats.trySetPermits(2)
    await ready.trySetCount(2)
    await seats.acquire(2)
    const other = run(
      context.url,
      `(async () => {
        const client = await Client.connect({ recheck: '1h' })
        const permit = await client.plainSemaphore(${JSON.stringify(seats.name)}).acquire(2)
        console.log(await client.latch(${JSON.stringify(ready.name)}).countDown())
        await client.latch(${JSON.stringify(ready.name)}).wait()
        await permit.release()
        await client.close()
      })()`,
      { env: { REDLATCH_WASM: '0' } },
    )
    const channel = `redisson_sc:{${seats.name}}`
    await until(async () => (await context.redis.send('PUBSUB', 'NUMSUB', channel))[1] === 1)
    await seats.release(2)
    await until(async () => (await ready.count()) === 1)
    await ready.countDown()
    const { code, stdout, stderr } = await other
    assert.deepEqual([code, stdout, stderr], [0, '1\n', ''])
    assert.equal(await seats.available(), 2)
  })
}
