'use strict'
// Locks, seen by one client or two.

const assert = require('node:assert/strict')
const { AsyncLocalStorage } = require('node:async_hooks')
const { inspect } = require('node:util')
const { Client, Hold, Lock, LockTimeoutError, NotOwnerError, ForeignKindError, InvalidArgumentError } = require('../index.js')
const { WINDOWS, aborted, freshName, shared, test, until } = require('./support/index.js')

const context = shared()

test('a lock is held, seen by others, and given back', async () => {
  const lock = context.client.lock(freshName())
  assert.equal(await lock.isLocked(), false)
  assert.equal(await lock.holder(), null)

  const hold = await lock.acquire()
  assert.ok(lock instanceof Lock && hold instanceof Hold)
  assert.equal(hold.name, lock.name)
  assert.equal(hold.isHeld, true)
  assert.equal(hold.holdCount, 1)
  assert.ok(hold.remaining > 1000)
  assert.equal(hold.fencingToken, undefined)
  hold.check()
  assert.equal(await lock.isLocked(), true)
  const holder = await lock.holder()
  assert.match(holder.owner, /^[0-9a-f-]{36}:\d+$/)
  assert.equal(hold.owner, holder.owner)
  assert.equal(holder.count, 1)
  assert.ok(holder.remaining > 1000)
  const { host, ...process_ } = holder.process
  assert.deepEqual(process_, { clientName: 'redlatch', language: 'node', pid: process.pid })
  assert.notEqual(host, '')

  assert.equal(await hold.release(), true)
  assert.equal(await lock.isLocked(), false)
})

// Whether a promise is settled before the event loop goes on: what comes from another thread needs a turn of it.
async function isSettledAtOnce(promise) {
  let settled = false
  promise.then(() => (settled = true))
  let turned = false
  setImmediate(() => (turned = true))
  for (let tick = 0; tick < 50; tick += 1) await null
  assert.equal(turned, false)
  return settled
}

test('a caller that is alone is answered at once', { skip: WINDOWS && 'no direct connection there' }, async () => {
  const client = await Client.connect(context.url)
  const lock = client.lock(freshName())
  await until(async () => {
    const acquired = lock.acquire()
    const first = await isSettledAtOnce(acquired)
    const released = (await acquired).release()
    return (await isSettledAtOnce(released)) && (await released) && first
  })
  await client.close()
})

test('without a direct connection nobody is answered at once', async () => {
  const client = await Client.connect(context.url, { direct: false })
  const lock = client.lock(freshName())
  for (let round = 0; round < 50; round += 1) {
    const acquired = lock.acquire()
    assert.equal(await isSettledAtOnce(acquired), false)
    await (await acquired).release()
  }
  await client.close()
})

test('release is idempotent, and a released hold is nobody\'s', async () => {
  const hold = await context.client.lock(freshName()).acquire()
  const [first, second] = await Promise.all([hold.release(), hold.release()])
  assert.deepEqual([first, second, await hold.release()], [true, true, true])
  assert.deepEqual([hold.isHeld, hold.remaining, hold.holdCount, hold.owner], [false, 0, 0, ''])
  assert.throws(() => hold.check(), NotOwnerError)
  await assert.rejects(hold.extend(1000), NotOwnerError)
  await assert.rejects(hold.reenter(), NotOwnerError)
})

test('acquisitions exclude each other, on one Lock object too', async () => {
  const lock = context.client.lock(freshName())
  let inside = 0
  let most = 0
  await Promise.all(
    Array.from({ length: 20 }, () =>
      lock.using(async () => {
        inside += 1
        most = Math.max(most, inside)
        await new Promise(setImmediate)
        inside -= 1
      }),
    ),
  )
  assert.equal(most, 1)
})

test('tryAcquire gives null when somebody holds the lock', async () => {
  const name = freshName()
  const other = await Client.connect(context.url)
  const hold = await other.lock(name).acquire()
  assert.equal(await context.client.lock(name).tryAcquire(), null)
  await hold.release()
  const mine = await context.client.lock(name).tryAcquire({ lease: 60_000 })
  assert.ok(mine.isHeld)
  await mine.release()
  await other.close()
})

test('a wait ends with LockTimeoutError', async () => {
  const lock = context.client.lock(freshName())
  const hold = await lock.acquire()
  await assert.rejects(lock.acquire({ wait: 30 }), (error) => {
    assert.ok(error instanceof LockTimeoutError)
    assert.deepEqual(
      [error.name, error.code, error.kind, error.lockName, error.retryable],
      ['LockTimeoutError', 'ERR_REDLATCH_TIMEOUT', 'timeout', lock.name, true],
    )
    assert.match(error.stack, /lock\.test\.js/, 'the stack shows who waited')
    return true
  })
  await hold.release()
})

test('a waiter gets the lock when it is released', async () => {
  const lock = context.client.lock(freshName())
  const hold = await lock.acquire()
  const waiter = lock.acquire()
  await hold.release()
  const next = await waiter
  assert.ok(next.isHeld)
  await next.release()
})

test('a hold is entered again through itself', async () => {
  const lock = context.client.lock(freshName())
  const outer = await lock.acquire()
  const inner = await outer.reenter()
  assert.deepEqual([outer.holdCount, inner.holdCount, (await lock.holder()).count], [2, 2, 2])
  const third = await lock.acquire({ hold: inner, wait: 60_000 })
  assert.equal(third.holdCount, 3)
  await third.release()
  await outer.release()
  assert.equal(inner.isHeld, true)
  assert.equal(inner.holdCount, 1)
  assert.equal(await lock.isLocked(), true)
  await inner.release()
  assert.equal(await lock.isLocked(), false)
})

test('a hold opens neither another lock nor the same lock of another client', async () => {
  const hold = await context.client.lock(freshName()).acquire()
  await assert.rejects(context.client.lock(freshName()).acquire({ hold }), InvalidArgumentError)
  const other = await Client.connect(context.url)
  await assert.rejects(other.lock(hold.name).acquire({ hold }), InvalidArgumentError)
  await other.close()
  const again = await context.client.lock(hold.name).acquire({ hold })
  assert.equal(again.holdCount, 2)
  await again.release()
  await hold.release()
})

test('acquisitions with one key are one owner', async () => {
  const lock = context.client.lock(freshName())
  const first = await lock.acquire({ key: 7 })
  const second = await lock.acquire({ key: 7n, wait: 60_000 })
  assert.equal(second.holdCount, 2)
  await assert.rejects(lock.acquire({ key: 8, wait: 0 }), LockTimeoutError)
  await first.release()
  await second.release()
})

test('with context: true what is called inside enters again, what is beside waits', async () => {
  const lock = context.client.lock(freshName(), { context: true })
  const count = async () => lock.using({ wait: 60_000 }, async (hold) => hold.holdCount)
  assert.equal(await lock.using(() => count()), 2)
  let inside = 0
  await Promise.all(
    [1, 2].map(() =>
      lock.using(async () => {
        inside += 1
        assert.equal(inside, 1)
        assert.equal(await count(), 2)
        inside -= 1
      }),
    ),
  )
  assert.equal(await lock.isLocked(), false)
  const outside = await lock.acquire()
  await assert.rejects(lock.acquire({ wait: 0 }), LockTimeoutError)
  await outside.release()
})

test('using() with context: true refuses an owner for which its function would wait', async () => {
  const lock = context.client.lock(freshName(), { context: true })
  const hold = await lock.acquire()
  for (const owner of [{ key: 7 }, { hold }]) {
    await assert.rejects(lock.using(owner, () => {}), /^InvalidArgumentError: (key|hold) is .*; leave it out: context is true/)
    assert.equal(await lock.using({ ...owner, wait: 0, context: false }, (inner) => inner.holdCount).catch((error) => error.code), owner.hold ? 2 : 'ERR_REDLATCH_TIMEOUT')
  }
  await hold.release()
})

test('an inner using() that outlives the outer one enters again', async () => {
  const lock = context.client.lock(freshName(), { context: true })
  const outerEnded = new AbortController()
  let inner
  await lock.using(async () => {
    const entered = new AbortController()
    inner = lock.using(async () => {
      entered.abort()
      await aborted(outerEnded.signal)
      return lock.using({ wait: 0 }, ({ holdCount }) => holdCount)
    })
    await aborted(entered.signal)
  })
  outerEnded.abort()
  assert.equal(await inner, 2)
  assert.equal(await lock.isLocked(), false)
})

test('what an inner using() began enters again after it, while the outer one goes on', async () => {
  const lock = context.client.lock(freshName(), { context: true })
  await lock.using(async () => {
    const innerEnded = new AbortController()
    let later
    await lock.using(() => {
      later = aborted(innerEnded.signal).then(() => lock.using({ wait: 0 }, ({ holdCount }) => holdCount))
    })
    innerEnded.abort()
    assert.equal(await later, 2)
  })
})

test('extend lets the lock live longer, never shorter', async () => {
  const lock = context.client.lock(freshName(), { lease: 30_000 })
  const hold = await lock.acquire()
  await hold.extend(600_000)
  assert.ok(hold.remaining > 500_000)
  await hold.extend(1000)
  assert.ok(hold.remaining > 500_000)
  assert.ok((await context.redis.send('PTTL', lock.name)) > 500_000)
  await hold.release()
})

test('fencing tokens grow', async () => {
  const lock = context.client.lock(freshName(), { fencing: true })
  const tokens = []
  for (let round = 0; round < 3; round += 1) {
    await lock.using((hold) => tokens.push(hold.fencingToken))
  }
  assert.ok(tokens.every((token) => typeof token === 'bigint'))
  assert.ok(tokens[0] < tokens[1] && tokens[1] < tokens[2])
})

test('whoever knows the token extends and releases', async () => {
  const lock = context.client.lock(freshName(), { kind: 'simple', lease: 60_000, linger: true })
  const hold = await lock.acquire({ token: 'job 7' })
  assert.equal(await context.redis.send('GET', lock.name), 'job 7')
  assert.equal(await lock.tryAcquire({ token: 'job 7' }), null)
  await assert.rejects(lock.releaseToken('job 8'), NotOwnerError)
  await assert.rejects(lock.extendToken('job 8', 120_000), NotOwnerError)
  await lock.extendToken('job 7', 120_000)
  assert.ok((await context.redis.send('PTTL', lock.name)) > 60_000)
  await lock.releaseToken('job 7')
  assert.equal(await context.redis.send('EXISTS', lock.name), 0)
  assert.equal(await hold.release(), false)
  for (const wrong of [undefined, null, 7, '\ud800']) {
    await assert.rejects(lock.releaseToken(wrong), InvalidArgumentError)
    await assert.rejects(lock.extendToken(wrong, 1000), InvalidArgumentError)
  }
})

test('an adopted lock outlives the hold that handed it on', async () => {
  const { client } = context
  const other = await Client.connect(context.url)
  const lock = client.lock(freshName(), { kind: 'simple' })
  const there = other.lock(lock.name, { kind: 'simple' })
  const hold = await lock.acquire({ token: 'job 7', lease: 1000 })
  await assert.rejects(there.adopt('job 8'), NotOwnerError)
  const adopted = await there.adopt('job 7')
  assert.ok(adopted instanceof Hold)
  await until(() => !hold.isHeld)
  assert.equal(await hold.release(), false)
  await assert.rejects(lock.adopt('job 7'), NotOwnerError)
  await assert.rejects(lock.releaseToken('job 7'), NotOwnerError)
  assert.equal(await lock.tryAcquire(), null)
  adopted.check()
  assert.ok((await context.redis.send('PTTL', lock.name)) > 20_000)
  assert.equal(await adopted.release(), true)
  assert.equal(await lock.isLocked(), false)

  // A loss of an adopted lock is told.
  await lock.acquire({ token: 'job 9', lease: 60_000 })
  const lost = await there.adopt('job 9', { lease: 60_000 })
  await context.redis.send('DEL', lock.name)
  await aborted(lost.signal)
  assert.equal(lost.signal.reason.reason, 'deleted')

  const ended = new AbortController()
  ended.abort(new Error('over'))
  await assert.rejects(there.adopt('job 7', { signal: ended.signal }), /over/)
  for (const [token, options] of [[undefined], [7], ['x', { wait: 5 }], ['x', { key: 1 }], ['x', { hold }], ['x', { context: true }]]) {
    await assert.rejects(there.adopt(token, options), InvalidArgumentError)
  }
  await assert.rejects(other.lock(freshName()).adopt('x'), InvalidArgumentError)
  await other.close()
})

test('a lock that another process extended by its token outlives the first hold', async () => {
  const lock = context.client.lock(freshName(), { kind: 'simple' })
  const other = await Client.connect(context.url)
  const hold = await lock.acquire({ token: 'job 7', lease: 300 })
  await other.lock(lock.name, { kind: 'simple' }).extendToken('job 7', 60_000)
  await aborted(hold.signal)
  assert.equal(hold.signal.reason.reason, 'expired')
  assert.equal(await hold.release(), false)
  assert.equal(await lock.tryAcquire(), null)
  assert.ok((await context.redis.send('PTTL', lock.name)) > 20_000)
  await other.close()
})

test('using gives what the function gives, throws what it throws, and releases', async () => {
  const lock = context.client.lock(freshName())
  assert.equal(await lock.using(() => 42), 42)
  assert.equal(await lock.using({ wait: 60_000, lease: 60_000 }, async (hold) => hold.name), lock.name)
  const error = new Error('mine')
  await assert.rejects(
    lock.using(() => {
      throw error
    }),
    (thrown) => thrown === error && thrown.cause === undefined,
  )
  assert.equal(await lock.isLocked(), false)
})

test('forceRelease deletes whoever holds', async () => {
  const lock = context.client.lock(freshName())
  assert.equal(await lock.forceRelease(), false)
  const hold = await lock.acquire()
  assert.equal(await lock.forceRelease(), true)
  await until(() => hold.signal.aborted)
  assert.equal(hold.signal.reason.reason, 'forced')
  assert.equal(await hold.release(), false)
})

test('stats count', async () => {
  await context.client.lock(freshName()).using(() => {})
  const stats = context.client.stats()
  assert.ok(stats.acquired > 0 && stats.released > 0 && stats.connects > 0)
  assert.equal(typeof stats.eventsDropped, 'number')
})

test('holds and locks are shown with what matters', async () => {
  const lock = context.client.lock('shown')
  const hold = await lock.acquire()
  assert.match(inspect(context.client), /^Client { holds: \d+, waiting: 0 }$/)
  assert.equal(inspect(lock), "Lock { name: 'shown' }")
  assert.equal(inspect(hold), "Hold { name: 'shown', isHeld: true, holdCount: 1, fencingToken: undefined }")
  await hold.release()
})

test('a simple lock is a string with the token that was given, and does not re-enter', async () => {
  const name = freshName()
  const lock = context.client.lock(name, { kind: 'simple' })
  const hold = await lock.acquire({ token: 'request-7', key: 1 })
  assert.equal(await context.redis.send('GET', name), 'request-7')
  const holder = await lock.holder()
  assert.deepEqual({ ...holder, remaining: 0 }, { owner: 'request-7', count: 1, remaining: 0, process: null })
  assert.equal(await lock.tryAcquire({ key: 1 }), null)
  await assert.rejects(context.client.lock(name).acquire(), ForeignKindError)
  await hold.release()
  assert.equal(await context.redis.send('EXISTS', name), 0)

  const article = context.client.lock(name, { kind: 'article', reentrant: true })
  assert.equal(article.name, `lock:${name}`)
  const outer = await article.acquire({ key: 1 })
  const inner = await article.acquire({ key: 1 })
  assert.match((await article.holder()).owner, /^[0-9a-f]{32}-\d+$/)
  assert.equal(outer.holdCount, 2)
  await inner.release()
  await outer.release()
  await assert.rejects(context.client.lock(name).acquire({ token: 'x' }), InvalidArgumentError)
  assert.throws(() => context.client.lock(name, { kind: 'fairest' }), /give it reentrant, simple/)
})

test('the queue of a fair lock can be asked', async () => {
  const name = freshName()
  const lock = context.client.lock(name, { kind: 'fair' })
  const hold = await lock.acquire()
  assert.deepEqual(await lock.waiters(), [])
  const first = lock.acquire()
  await until(async () => (await lock.waiters()).length === 1)
  const second = lock.acquire()
  await until(async () => (await lock.waiters()).length === 2)
  const [head, ...others] = await lock.waiters()
  assert.equal(head.count, 0)
  assert.equal(head.process.pid, process.pid)
  assert.ok(head.remaining > 0)
  await hold.release()
  const next = await first
  assert.deepEqual(
    (await lock.waiters()).map(({ owner }) => owner),
    others.map(({ owner }) => owner)
  )
  await next.release()
  await (await second).release()
  assert.deepEqual(await lock.waiters(), [])
  await assert.rejects(context.client.lock(name).waiters(), (error) => {
    return error instanceof InvalidArgumentError && /of the kind reentrant; give it the kind fair/.test(error.message)
  })
})

test('locks that share what they have in common keep what they have not', async () => {
  const { client } = context
  const name = freshName()
  const leases = [undefined, 5000, 9000, undefined, 9000, 5000]
  const locks = leases.map((watchdogLease, at) => client.lock(`${name}:${at}`, watchdogLease && { watchdogLease }))
  assert.throws(() => client.lock('', { watchdogLease: 5000 }), InvalidArgumentError)
  assert.throws(() => client.lock(name, { watchdogLease: -1 }), InvalidArgumentError)
  const fenced = client.lock(`${name}:fenced`, { fencing: true, watchdogLease: 5000 })
  for (const [at, lock] of locks.entries()) {
    assert.equal(lock.name, `${name}:${at}`)
    const hold = await lock.acquire()
    const most = leases[at] ?? 30000
    assert.ok(hold.remaining <= most && hold.remaining > most - 4000, `${hold.remaining} of ${most}`)
    assert.equal(hold.fencingToken, undefined)
    await hold.release()
  }
  await fenced.using((hold) => assert.equal(typeof hold.fencingToken, 'bigint'))
})

test('what was begun inside using and goes on after it enters as an owner of its own', async () => {
  const lock = context.client.lock(freshName(), { context: true })
  const inside = await lock.using(() => AsyncLocalStorage.snapshot())
  let [now, most] = [0, 0]
  const visit = () =>
    lock.using(async () => {
      most = Math.max(most, (now += 1))
      await new Promise(setImmediate)
      now -= 1
    })
  await inside(() => Promise.all([visit(), visit(), visit()]))
  assert.equal(most, 1)
  const [first, second] = await inside(() => Promise.all([lock.acquire(), lock.tryAcquire()]))
  assert.equal(second, null)
  await first.release()
})
