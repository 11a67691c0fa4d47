'use strict'
// Several locks as one: all of them or none.

const assert = require('node:assert/strict')
const { once } = require('node:events')
const { inspect } = require('node:util')
const { Client, InvalidArgumentError, Lock, LockLostError, LockTimeoutError, MultiLock, NotOwnerError } = require('../index.js')
const { aborted, collector, freshName, shared, test, until } = require('./support/index.js')

const context = shared()

// Names in their order.
const freshNames = (count) => Array.from({ length: count }, (_, at) => `${freshName()}:${'abcdef'[at]}`).sort()

// Gives the names that are locked on the server.
async function locked(names) {
  const there = await Promise.all(names.map((name) => context.redis.send('EXISTS', name)))
  return names.filter((_, at) => there[at] === 1)
}

// Runs `fn` with a client of its own.
async function withOther(fn) {
  const other = new Client(context.url)
  try {
    return await fn(other)
  } finally {
    await other.close()
  }
}

test('it has all of its names or none', () =>
  withOther(async (other) => {
    const names = freshNames(3)
    const [a, b, c] = names
    const all = context.client.multiLock([c, a, b])
    assert.ok(all instanceof MultiLock && all instanceof Lock)
    assert.equal(all.name, names.join(', '))
    assert.deepEqual(all.parts.map(({ name }) => name), names)
    assert.equal(inspect(all), `MultiLock ${inspect({ name: all.name })}`)

    const hold = await all.acquire()
    assert.deepEqual([hold.name, hold.isHeld, hold.holdCount], [all.name, true, 1])
    assert.ok(hold.remaining > 20_000)
    assert.deepEqual(await Promise.all(names.map((name) => other.lock(name).tryAcquire())), [null, null, null])
    assert.equal(await other.multiLock(names).tryAcquire(), null)
    assert.equal(await hold.release(), true)
    assert.equal(await hold.release(), true)
    assert.deepEqual(await locked(names), [])

    const theirs = await other.lock(b).acquire()
    assert.equal(await all.tryAcquire(), null)
    await until(async () => (await locked(names)).join() === b)
    await theirs.release()
    assert.equal(await all.using({ wait: 0 }, async ({ isHeld }) => [isHeld, ...(await locked(names))].join()), ['true', ...names].join())
    assert.deepEqual(await locked(names), [])
  }))

test('it waits for the name that is held, keeps those before it, and gets all', () =>
  withOther(async (other) => {
    const names = freshNames(3)
    const [a, b] = names
    const theirs = await other.lock(b).acquire()
    const waiting = context.client.multiLock(names).acquire()
    await until(async () => context.client.stats().waiting === 1 && (await locked(names)).join() === [a, b].join())
    await theirs.release()
    const hold = await waiting
    assert.deepEqual(await locked(names), names)
    await hold.release()
  }))

test('callers that name the same locks in opposite orders never wait for each other', () =>
  withOther(async (other) => {
    const names = freshNames(4)
    const inside = new Set()
    const work = async (lock, own) => {
      for (let round = 0; round < 20; round += 1) {
        await lock.using({ wait: '2m' }, async () => {
          for (const name of own) {
            assert.ok(!inside.has(name), `somebody else has ${name}`)
            inside.add(name)
          }
          await new Promise(setImmediate)
          for (const name of own) inside.delete(name)
        })
      }
    }
    const orders = [names, names.toReversed(), names.slice(1), names.slice(0, 3).toReversed(), [names[3], names[0]], [names[0]]]
    const workers = [context.client, other].flatMap((client) => orders.map((own) => work(client.multiLock(own), own)))
    await Promise.all(workers)
    assert.deepEqual(await locked(names), [])
  }))

test('a wait that ends names the lock that is held, and leaves nothing', () =>
  withOther(async (other) => {
    const names = freshNames(2)
    const theirs = await other.lock(names[1]).acquire()
    const all = context.client.multiLock(names)
    await assert.rejects(all.acquire({ wait: 500 }), (error) => {
      assert.ok(error instanceof LockTimeoutError)
      assert.equal(error.lockName, all.name)
      assert.ok(error.message.startsWith(`multi lock "${all.name}": not acquired within 500ms: somebody else holds "${names[1]}"`), error.message)
      return true
    })
    await until(async () => (await locked(names)).join() === names[1])
    await theirs.release()
    assert.deepEqual(await locked(names), [])
  }))

test('an aborted wait leaves nothing', () =>
  withOther(async (other) => {
    const names = freshNames(3)
    const theirs = await other.lock(names[1]).acquire()
    const [controller, reason] = [new AbortController(), new Error('enough')]
    const waiting = context.client.multiLock(names).acquire({ signal: controller.signal })
    await until(async () => context.client.stats().waiting === 1 && (await locked(names)).length === 2)
    controller.abort(reason)
    await assert.rejects(waiting, (error) => error === reason)
    await until(async () => context.client.stats().waiting === 0 && (await locked(names)).join() === names[1])
    await theirs.release()
    const calls = context.client.stats().calls
    await assert.rejects(context.client.multiLock(names).acquire({ signal: AbortSignal.abort(reason) }), (error) => error === reason)
    assert.equal(context.client.stats().calls, calls)
  }))

test('the loss of one name is the loss of the whole', () =>
  withOther(async (other) => {
    const names = freshNames(3)
    const all = context.client.multiLock(names)
    const hold = await all.acquire()
    const told = once(context.client, 'lost')
    assert.equal(await context.redis.send('DEL', names[1]), 1)
    const reason = await aborted(hold.signal)
    assert.ok(reason instanceof LockLostError)
    assert.deepEqual([reason.reason, reason.lockName], ['deleted', all.name])
    assert.ok(reason.message.startsWith(`multi lock "${all.name}": `), reason.message)
    assert.equal((await told)[0], reason)
    assert.deepEqual([hold.isHeld, hold.remaining], [false, 0])
    assert.throws(() => hold.check(), LockLostError)
    // Its holder may still be at work: nobody else gets the others meanwhile.
    assert.equal(await other.lock(names[0]).tryAcquire(), null)
    assert.equal(await hold.release(), false)
    assert.deepEqual(await locked(names), [])
    await assert.rejects(
      all.using(async (own) => {
        await context.redis.send('DEL', names[2])
        await aborted(own.signal)
      }),
      { name: 'LockLostError', lockName: all.name, reason: 'deleted' },
    )
    assert.deepEqual(await locked(names), [])
  }))

test('its locks may be of any kind, each with its options', async () => {
  const { client } = context
  const [fenced, other, prices, seats, simple] = ['a', 'b', 'c', 'd', 'e'].map((letter) => `${letter}:${freshName()}`)
  const [book, gpus] = [client.rwLock(prices), client.semaphore(seats, 2)]
  const inner = client.multiLock([client.lock(simple, { kind: 'simple' }), client.lock(fenced, { fencing: true })])
  const all = client.multiLock([inner, other, book.read, gpus], { lease: 60_000, fencing: true })
  assert.equal(all.name, [fenced, other, `${prices} (read)`, seats, simple].join(', '))
  assert.deepEqual(all.parts.slice(2, 4), [book.read, gpus])
  const hold = await all.acquire()
  assert.equal(await context.redis.send('TYPE', simple), 'string')
  assert.ok((await context.redis.send('PTTL', other)) > 30_000)
  assert.ok(hold.remaining <= 30_000, 'as long as the one that ends first')
  const reader = await book.read.acquire()
  assert.equal(await book.write.tryAcquire(), null)
  assert.deepEqual(await gpus.permits(), { available: 1, limit: 2 })

  const { parts } = hold
  assert.deepEqual(parts.map(({ name }) => name), all.parts.map(({ name }) => name))
  assert.deepEqual(parts.map(({ fencingToken }) => typeof fencingToken), ['bigint', 'bigint', ...Array(3).fill('undefined')])
  assert.equal(hold.fencingToken, undefined)
  const owners = await Promise.all([client.lock(fenced), client.lock(other)].map((lock) => lock.holder()))
  assert.deepEqual(parts.slice(0, 2).map(({ owner }) => owner), owners.map(({ owner }) => owner))
  assert.equal(await context.redis.send('GET', simple), parts[4].owner)
  assert.equal(hold.owner, parts.map(({ owner }) => owner).join(', '))

  await hold.release()
  assert.deepEqual(hold.parts, parts)
  assert.deepEqual(await gpus.permits(), { available: 2, limit: 2 })
  await reader.release()
  await all.using((later) => assert.ok(later.parts[0].fencingToken > parts[0].fencingToken))
  const plain = await client.lock(other).acquire()
  assert.deepEqual(plain.parts, [])
  await plain.release()
})

test('it is extended as a whole', async () => {
  const names = freshNames(2)
  const hold = await context.client.multiLock(names).acquire()
  await hold.extend('100s')
  for (const name of names) assert.ok((await context.redis.send('PTTL', name)) > 50_000)
  assert.ok(hold.remaining > 50_000)
  await hold.release()
})

test('its key and its context enter it again', async () => {
  const names = freshNames(2)
  const all = context.client.multiLock(names, { context: true })
  const [outer, inner] = [await all.acquire({ key: 7 }), await all.acquire({ key: 7, wait: 0 })]
  assert.deepEqual([outer.holdCount, inner.holdCount], [2, 2])
  await inner.release()
  assert.deepEqual(await locked(names), names)
  await outer.release()
  assert.deepEqual(await locked(names), [])
  assert.equal(await all.using(() => all.using({ wait: 0 }, (hold) => hold.holdCount)), 2)
})

test('closing releases it and tells its holder', async () => {
  const names = freshNames(2)
  const client = await Client.connect(context.url)
  const all = client.multiLock(names)
  const hold = await all.acquire()
  const lost = aborted(hold.signal)
  assert.deepEqual(await client.close(), [])
  assert.equal((await lost).reason, 'closed')
  assert.deepEqual(await locked(names), [])
  assert.equal(await hold.release(), false)
  await assert.rejects(all.acquire(), { name: 'ClosedError', lockName: all.name })
})

test('a Hold that is garbage-collected is not renewed any more, and a warning names it', async () => {
  const collect = collector()
  const names = freshNames(2)
  const all = context.client.multiLock(names, { watchdogLease: '1s' })
  const warned = []
  const listener = ({ message }) => warned.push(message)
  process.on('warning', listener)
  await (async () => void (await all.acquire()))()
  await until(() => {
    collect()
    return warned.some((message) => message.startsWith(`a hold of the multi lock "${all.name}" was garbage-collected`))
  })
  process.off('warning', listener)
  await until(async () => (await locked(names)).length === 0)
})

test('a wrong use is told what is wrong and what to do', () => withOther(refusesWrongUses))

// Nothing else is done by this client.
async function refusesWrongUses(client) {
  const refused = (text) => (error) => {
    assert.ok(error instanceof InvalidArgumentError, `${error}`)
    assert.match(error.message, text)
    return true
  }
  const made = (text, ...given) => assert.throws(() => client.multiLock(...given), refused(text))
  made(/^a multi lock of no names; give it at least one$/, [])
  made(/^a multi lock of no names/, [], { lease: 5000 })
  made(/^lock "a": a multi lock has this name twice; give it each name once$/, ['a', 'b', 'a'])
  const sides = client.rwLock('a')
  made(/twice/, [sides.read, sides.write])
  made(/^one of the locks is a read-write lock, "a"; give its read or its write$/, ['b', sides])
  for (const given of [undefined, null, 'a', 5, new Set(['a']), client.lock('a')]) made(/^the locks are .*; give an array/, given)
  for (const given of [undefined, null, 5, {}, ['a'], client, client.plainSemaphore('a'), client.latch('a')]) {
    made(/^one of the locks is .*, neither a name nor a lock; give names/, ['b', given])
  }
  made(/the lock name is empty/, ['a', ''])
  made(/surrogate/, ['a\ud800'])
  made(/client\.semaphore\(name/, ['a'], { kind: 'semaphore' })
  made(/did you mean lease\?/, ['a'], { lese: 5000 })
  made(/^the options are 5; give an object$/, ['a'], 5)
  made(/^lease is given, and no name that it could be for; give it to client\.lock\(\)$/, [client.lock('a')], { lease: 5000 })
  assert.throws(() => client.lock('a', { kind: 'multi' }), InvalidArgumentError)
  made(/^lock "b": this lock is of another client; make each lock/, ['a', context.client.lock('b')])

  const all = client.multiLock(['a', 'b'])
  const noKey = refused(/^multi lock "a, b": a multi lock has no key of its own; ask each of its locks$/)
  for (const name of ['isLocked', 'holder', 'holders', 'waiters', 'forceRelease']) await assert.rejects(all[name](), noKey)
  await assert.rejects(all.releaseToken('t'), InvalidArgumentError)
  await assert.rejects(all.extendToken('t', 5000), InvalidArgumentError)
  await assert.rejects(all.acquire({ token: 't' }), InvalidArgumentError)
  await assert.rejects(all.acquire({ permits: 2 }), InvalidArgumentError)
  assert.equal(client.stats().calls, 0)

  const hold = await all.acquire()
  const again = refused(/^multi lock "a, b": a multi lock is not entered again by its hold; acquire it once more with the same key$/)
  await assert.rejects(hold.reenter(), again)
  await assert.rejects(all.acquire({ hold }), again)
  const alike = client.lock('a, b')
  await assert.rejects(alike.acquire({ hold }), refused(/one of the multi lock "a, b"; give it a Hold of this lock/))
  await alike.using((own) => assert.rejects(all.acquire({ hold: own }), refused(/one of the lock "a, b"/)))
  await hold.release()
  await assert.rejects(hold.extend(5000), NotOwnerError)
}

test('data at one of the names ends the acquisition, and nothing stays', async () => {
  const names = freshNames(2)
  await context.redis.send('SET', names[1], 'mine')
  const all = context.client.multiLock(names)
  await assert.rejects(all.acquire(), (error) => {
    assert.deepEqual([error.name, error.lockName], ['ForeignKindError', all.name])
    return error.message.startsWith(`multi lock "${all.name}": "${names[1]}": `)
  })
  await until(async () => (await locked(names)).join() === names[1])
})
