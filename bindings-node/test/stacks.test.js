'use strict'
// The stack of an error begins with the line of the program that met it, not with lines of the package.

const assert = require('node:assert/strict')
const { join } = require('node:path')
const { Client, InvalidArgumentError, LockError, LockLostError, UnavailableError } = require('../index.js')
const { PACKAGE, Server, aborted, freshName, run, shared, test } = require('./support/index.js')

const context = shared()

// Gives the error of a function of the program, and checks that its stack begins with that function.
async function seen(meets) {
  async function program() {
    await meets()
  }
  const error = await program().then(() => assert.fail('nothing was thrown'), (thrown) => thrown)
  const [first] = error.stack.split('\n').filter((line) => /^ {4}at (?!.*\(node:)/.test(line))
  // Bun's stacks end where a function awaits.
  if (process.versions.bun === undefined) assert.ok(first?.includes(__filename), error.stack)
  return error
}

// A hold whose key was deleted, once it knows.
async function lost() {
  const hold = await context.client.lock(freshName()).acquire()
  await context.redis.send('DEL', hold.name)
  await aborted(hold.signal)
  return hold
}

test('a call that meets a loss is where its error begins', async () => {
  const hold = await lost()
  const errors = [await seen(async () => hold.check()), await seen(async () => await hold.extend(5000))]
  for (const error of errors) {
    assert.ok(error instanceof LockLostError && error !== hold.signal.reason)
    assert.deepEqual([error.reason, error.lockName, error.message], ['deleted', hold.name, hold.signal.reason.message])
    assert.match(error.message, /Stop what it protects, look at what was done since, then acquire anew/)
  }
  assert.equal(hold.signal.reason.stack, `${hold.signal.reason}`)
  assert.equal(await hold.release(), false)
})

test('using() that meets a loss is where its error begins', async () => {
  for (const context_ of [false, true]) {
    const lock = context.client.lock(freshName(), { context: context_ })
    const lose = async (hold) => {
      await context.redis.send('DEL', lock.name)
      await aborted(hold.signal)
    }
    assert.equal((await seen(async () => await lock.using(lose))).reason, 'deleted')
  }
})

test('every other call is where its error begins', async () => {
  const { client } = context
  const name = freshName()
  const [lock, semaphore] = [client.lock(name), client.semaphore(freshName(), 1)]
  const hold = await lock.acquire()
  const calls = [
    () => new Client('redis://h', { leese: 1 }),
    () => new Client(5),
    () => Client.connect('http://h'),
    () => client.lock(''),
    () => client.lock('a', { leese: 1 }),
    () => client.rwLock('a', { kind: 'simple' }),
    () => client.multiLock('a'),
    () => client.multiLock([5]),
    () => client.multiLock(['a', 'a']),
    () => client.multiLock(['']),
    () => client.multiLock(['a']).isLocked(),
    () => client.semaphore('a', { kind: 'simple' }),
    () => client.close('soon'),
    () => lock.acquire({ wait: 1 }),
    () => lock.acquire({ wait: -1 }),
    () => lock.acquire(5),
    () => lock.acquire({ hold: 5 }),
    () => lock.tryAcquire({ wait: 1 }),
    () => lock.tryAcquire({ leese: 1 }),
    () => lock.using({ wait: 1 }, () => {}),
    () => lock.using(),
    () => lock.waiters(),
    () => lock.releaseToken('a'),
    () => lock.extendToken('a', -1),
    () => hold.extend(-1),
    () => hold.reenter({ leese: 1 }),
    () => semaphore.acquire({ key: 1 }),
    () => semaphore.acquire({ permits: 2 ** 40 }),
    () => semaphore.tryAcquire({ key: 1 }),
    () => semaphore.using({ key: 1 }, () => {}),
    () => semaphore.using({ wait: -1 }, () => {}),
    () => semaphore.setPermits(-1),
  ]
  for (const call of calls) assert.ok((await seen(async () => await call())) instanceof LockError, `${call}`)
  await hold.release()
  await seen(async () => hold.check())
  await context.redis.send('SET', name, 'other data')
  for (const ask of ['acquire', 'tryAcquire', 'isLocked', 'holder', 'holders', 'forceRelease']) await seen(async () => await lock[ask]())
})

test('the errors of a function and the reason of a signal keep their stacks', async () => {
  const lock = context.client.lock(freshName())
  const mine = new InvalidArgumentError('mine')
  const { stack } = mine
  await assert.rejects(lock.using(() => Promise.reject(mine)), (error) => error === mine)
  const options = { signal: AbortSignal.abort(mine) }
  for (const call of [() => lock.acquire(options), () => lock.tryAcquire(options), () => lock.using(options, () => {})]) {
    await assert.rejects(call, (error) => error === mine)
  }
  assert.equal(mine.stack, stack)
})

test('Node.js shows the line of the program above an unhandled rejection', async () => {
  const { stderr } = await run(context.url, "void new Client().lock('a').acquire({ leese: 1 })")
  assert.match(stderr, /\n\s*void new Client\(\)\.lock\('a'\)\.acquire\(\{ leese: 1 \}\)\n/)
})

test('a wrong argument is a TypeError, and a LockError', () => {
  const thrown = [() => new Client(5), () => context.client.lock(5), () => context.client.lock('a', { lease: -1 })].map((call) => {
    try {
      return assert.fail(call())
    } catch (error) {
      return error
    }
  })
  for (const error of thrown) {
    for (const errorClass of [TypeError, LockError, InvalidArgumentError, Error]) assert.ok(error instanceof errorClass)
    assert.deepEqual([error.code, error.kind, error.retryable], ['ERR_REDLATCH_INVALID_ARGUMENT', 'invalid_argument', false])
  }
  for (const other of [new TypeError('a'), null, 5, {}]) assert.equal(other instanceof LockError, false)
  class Own extends LockError {}
  assert.deepEqual([new Own('a') instanceof LockError, thrown[0] instanceof Own], [true, false])
})

test('a server that is out of reach has the error of the system as the cause', async () => {
  const server = await Server.start()
  await server.stop()
  for (const url of [server.url, `unix://${join(PACKAGE, 'no-such.sock')}`]) {
    const code = url.startsWith('unix') ? 'ENOENT' : 'ECONNREFUSED'
    const client = new Client(url)
    const calls = [() => Client.connect(url), () => client.lock('a').acquire()]
    for (const call of calls) {
      const error = await seen(async () => await call())
      assert.ok(error instanceof UnavailableError)
      assert.ok(error.cause instanceof Error)
      assert.equal(error.cause.code, code)
      assert.ok(error.message.includes(error.cause.message), error.message)
    }
    await client.close()
  }
})
