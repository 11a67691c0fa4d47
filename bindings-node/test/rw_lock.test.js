'use strict'
// Both sides of a read-write lock, seen by one client or two.

const assert = require('node:assert/strict')
const { inspect } = require('node:util')
const { Client, ForeignKindError, InvalidArgumentError, LockLostError, RwLock, WouldDeadlockError } = require('../index.js')
const { freshName, shared, test, until } = require('./support/index.js')

const context = shared()

test('readers are beside each other, and a writer is alone', async () => {
  const { client } = context
  const lock = client.rwLock(freshName())
  assert.ok(lock instanceof RwLock)
  assert.equal(lock.name, lock.read.name)
  assert.match(inspect(lock), /^RwLock \{ name: /)

  const readers = await Promise.all([1, 2, 3].map(() => lock.read.acquire()))
  assert.equal((await lock.read.holders()).length, 3)
  assert.equal(await lock.read.isLocked(), true)
  assert.equal(await lock.write.isLocked(), false)
  assert.deepEqual(await lock.write.holders(), [])
  assert.equal(await lock.write.tryAcquire(), null)
  for (const reader of readers) assert.equal(await reader.release(), true)

  const writer = await lock.write.acquire()
  assert.match((await lock.write.holder()).owner, /^[0-9a-f-]{36}:\d+:write$/)
  assert.equal(await lock.read.tryAcquire(), null)
  assert.equal(await lock.write.tryAcquire(), null)
  await writer.release()
  assert.equal(await lock.write.holder(), null)
})

test('a writer lets all readers in, and the last reader the writer', async () => {
  // No wait ends by a recheck: wake-ups have to come.
  const other = new Client(context.url, { recheck: '1h' })
  const name = freshName()
  const [here, there] = [context.client.rwLock(name), other.rwLock(name)]
  const writer = await here.write.acquire()
  const reading = Array.from({ length: 20 }, () => there.read.acquire())
  await until(() => other.stats().waiting === 20)
  await writer.release()
  const readers = await Promise.all(reading)
  assert.ok(readers.every((reader) => reader.isHeld))

  const waiting = here.write.acquire()
  await until(() => context.client.stats().waiting > 0)
  await Promise.all(readers.map((reader) => reader.release()))
  await (await waiting).release()
  await other.close()
})

test('an owner that writes may read and keep reading', async () => {
  const lock = context.client.rwLock(freshName())
  const owner = { key: 7 }
  const writer = await lock.write.acquire(owner)
  const reader = await lock.read.acquire({ ...owner, wait: 0 })
  assert.equal(await lock.read.tryAcquire(), null)
  await writer.release()
  const beside = await lock.read.tryAcquire()
  assert.ok(beside.isHeld)
  await beside.release()
  assert.equal(await lock.write.tryAcquire(), null)
  await reader.release()
})

test('a hold is entered on its own side only', async () => {
  const lock = context.client.rwLock(freshName())
  const [reader, other] = [await lock.read.acquire(), await lock.read.acquire()]
  const refusal = (error) => {
    assert.ok(error instanceof InvalidArgumentError)
    assert.match(error.message, /other side .* with the same key/)
    return true
  }
  await assert.rejects(lock.write.acquire({ hold: reader }), refusal)
  const inner = await lock.read.acquire({ hold: reader })
  assert.deepEqual([inner.holdCount, other.holdCount], [2, 1])
  for (const hold of [inner, reader, other]) await hold.release()
  await lock.write.using((writer) => assert.rejects(lock.read.acquire({ hold: writer }), refusal))
})

test('tries of an owner that writes get one hold', async () => {
  const lock = context.client.rwLock(freshName())
  const owner = { key: 7 }
  const writer = await lock.write.acquire(owner)
  // Both are sent before one is answered.
  await context.redis.send('CLIENT', 'PAUSE', '300', 'ALL')
  const [first, second] = await Promise.all([lock.read.tryAcquire(owner), lock.read.tryAcquire(owner)])
  assert.deepEqual([first.holdCount, second.holdCount, (await lock.read.holders()).length], [2, 2, 1])
  for (const hold of [writer, first]) await hold.release()
  assert.equal(await lock.write.tryAcquire(), null)
  await second.release()
})

test('an owner that reads and asks to write is refused', async () => {
  const lock = context.client.rwLock(freshName())
  const reader = await lock.read.acquire({ key: 7 })
  await assert.rejects(lock.write.acquire({ key: 7 }), (error) => {
    assert.ok(error instanceof WouldDeadlockError)
    assert.equal(error.code, 'ERR_REDLATCH_WOULD_DEADLOCK')
    assert.equal(error.lockName, lock.name)
    assert.match(error.message, /release the read lock first/)
    return true
  })
  assert.equal(reader.isHeld, true)
  await reader.release()
  await (await lock.write.acquire({ key: 7 })).release()
})

test('a context that writes may read', async () => {
  const lock = context.client.rwLock(freshName(), { context: true })
  const read = await lock.write.using(() => lock.read.using((hold) => hold.isHeld))
  assert.equal(read, true)
})

test('a reader hears of its loss', async () => {
  const lock = context.client.rwLock(freshName(), { watchdogLease: '1s' })
  const reader = await lock.read.acquire()
  const lost = new Promise((resolve) => reader.signal.addEventListener('abort', () => resolve(reader.signal.reason)))
  const other = new Client(context.url)
  assert.equal(await other.rwLock(lock.name).write.forceRelease(), false)
  assert.equal(await other.rwLock(lock.name).read.forceRelease(), true)
  assert.ok((await lost) instanceof LockLostError)
  assert.equal(await reader.release(), false)
  await other.close()
})

test('options are for both sides, and tokens for the writer', async () => {
  const name = freshName()
  const lock = context.client.rwLock(name, { fencing: true })
  const writer = await lock.write.acquire()
  assert.ok(writer.fencingToken > 0n)
  await writer.release()
  const reader = await lock.read.acquire()
  assert.equal(reader.fencingToken, undefined)
  await assert.rejects(context.client.lock(name).acquire({ wait: 0 }), ForeignKindError)
  await reader.release()
  assert.throws(() => context.client.rwLock(name, { kind: 'simple' }), InvalidArgumentError)
  assert.throws(() => context.client.rwLock(name, 'read'), InvalidArgumentError)
  assert.throws(() => context.client.rwLock(''), InvalidArgumentError)
  assert.throws(() => context.client.lock(name, { kind: 'read', fencing: true }), /draws no token/)
})

test('new readers stand back for a writer of another client', async () => {
  const other = new Client(context.url)
  const name = freshName()
  const options = { writerPreference: '60s' }
  const [here, there] = [context.client.rwLock(name, options), other.rwLock(name, options)]
  const reader = await here.read.acquire()
  const giveUp = new AbortController()
  const waiting = there.write.acquire({ signal: giveUp.signal })
  await until(async () => {
    const beside = await here.read.tryAcquire()
    await beside?.release()
    return beside === null
  })
  // Programs without the option read as before.
  const beside = await context.client.rwLock(name).read.tryAcquire()
  await beside.release()
  const reading = here.read.acquire()
  giveUp.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  await (await reading).release()

  const writing = there.write.acquire()
  await reader.release()
  await (await writing).release()
  await (await here.read.acquire()).release()
  assert.throws(() => context.client.lock(name, { writerPreference: 1000 }), InvalidArgumentError)
  await other.close()
})
