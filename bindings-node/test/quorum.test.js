'use strict'
// The lock of a quorum: servers that know nothing of each other, of which most are enough.

const assert = require('node:assert/strict')
const { after, beforeEach } = require('node:test')
const { Client, InvalidArgumentError, LockLostError, UnavailableError } = require('../index.js')
const { Connection, Server, aborted, freshName, run, test, until } = require('./support/index.js')

// A machine may stand still for nearly two thirds of it without a loss.
const LEASE = 6000
let servers = []

const url = () => `redis+quorum://${servers.map(({ port }) => `127.0.0.1:${port}`).join(',')}`
// Servers that were started now have lost nothing.
const connect = (options) => Client.connect(url(), { restartDelay: 0, ...options })

beforeEach(async () => {
  const before = servers
  servers = await Promise.all([Server.start(), Server.start(), Server.start()])
  await stop(before)
})
after(() => stop(servers))

const stop = (some) => Promise.all(some.map((server) => server.stop()))

// Asks these servers something.
const ask = (asked, ...words) =>
  Promise.all(
    asked.map(async ({ port }) => {
      const redis = await Connection.open(port)
      const answer = await redis.send(...words)
      redis.end()
      return answer
    }),
  )

// How many servers have the key.
const having = async (name) => (await ask(servers, 'EXISTS', name)).reduce((sum, there) => sum + there, 0)

test('the lock of a quorum is on all servers and excludes others', async () => {
  const [client, other, name] = [await connect(), await connect(), freshName()]
  const hold = await client.lock(name).acquire()
  assert.equal(await having(name), 3)
  assert.ok(hold.isHeld && hold.remaining > 20_000)
  assert.deepEqual(hold.parts, []) // those are of a multi lock
  assert.equal(await other.lock(name).tryAcquire(), null)
  const theirs = other.lock(name).acquire()
  await until(() => other.stats().waiting === 1)
  await hold.release()
  await (await theirs).release()
  await until(async () => (await having(name)) === 0)
  await Promise.all([client.close(), other.close()])
})

test('it stands the death of one server and not of two', async () => {
  const [client, other, name] = [await connect(), await connect(), freshName()]
  client.on('lost', () => {})
  const hold = await client.lock(name, { watchdogLease: LEASE }).acquire()
  const before = client.stats().renewed
  await servers.shift().stop()
  // Twice each of the two that are left.
  await until(() => client.stats().renewed >= before + 4)
  assert.ok(hold.isHeld && !hold.signal.aborted)
  assert.equal(await other.lock(name).tryAcquire(), null)
  const second = await other.lock(freshName()).acquire()
  assert.equal(await having(second.name), 2)
  await second.release()
  await servers.shift().stop()
  const reason = await aborted(hold.signal)
  assert.ok(reason instanceof LockLostError, reason)
  assert.match(reason.reason, /^(unreachable|expired)$/)
  assert.equal(hold.isHeld, false)
  assert.equal(await hold.release(), false)
  await Promise.all([client.close().catch(() => {}), other.close().catch(() => {})])
})

test('a server that comes back has a vote again', async () => {
  // Nothing but the next attempt to connect is due in the time of this test.
  const [client, name] = [await connect({ outage: '10m' }), freshName()]
  const hold = await client.lock(name, { lease: '10m' }).acquire()
  const { port } = servers[0]
  await servers.shift().stop()
  const before = client.stats().connects
  servers.push(await Server.start({ port }))
  assert.equal(servers.at(-1).port, port)
  await until(() => client.stats().connects > before)
  // It has forgotten the lock, and gets it by the next acquisition alone.
  assert.equal(await having(name), 2)
  assert.equal(hold.isHeld, true)
  await hold.release()
  const next = await client.lock(name).acquire()
  assert.equal(await having(name), 3)
  // Most of the servers are those that stay now.
  await servers.shift().stop()
  await client.lock(freshName()).using((other) => assert.equal(other.isHeld, true))
  assert.equal(next.isHeld, true)
  await next.release()
  await client.close()
})

for (const protocol of ['auto', 'resp2']) {
  test(`a waiter is woken by the message of one server, with ${protocol}`, async () => {
    const [holder, waiter, name] = [await connect(), await connect({ protocol }), freshName()]
    const hold = await holder.lock(name).acquire()
    const waiting = waiter.lock(name).acquire()
    const listening = async () => (await ask(servers, 'PUBSUB', 'CHANNELS', 'redisson_*')).filter((channels) => channels.length === 1).length
    await until(async () => (await listening()) === 1)
    await hold.release()
    const next = await waiting
    assert.ok(waiter.stats().wakeups >= 1, `${waiter.stats().wakeups} messages`)
    await next.release()
    await until(async () => (await listening()) === 0)
    await Promise.all([holder.close(), waiter.close()])
  })
}

test('the loss of one key is no loss, and that of two is told at once', async () => {
  const [client, name] = [await connect(), freshName()]
  const told = []
  client.on('lost', (error) => told.push(error))
  // Nothing but what the servers say of their keys can tell of the loss in the time of this test.
  const hold = await client.lock(name, { lease: '10m' }).acquire()
  await ask(servers.slice(0, 1), 'DEL', name)
  await ask(servers.slice(0, 1), 'PING')
  await client.lock(freshName()).using(() => assert.equal(hold.isHeld, true))
  await ask(servers.slice(1, 2), 'DEL', name)
  const reason = await aborted(hold.signal)
  assert.ok(reason instanceof LockLostError, reason)
  assert.match(reason.message, new RegExp(`"${name}"`))
  assert.equal(hold.isHeld, false)
  await until(() => told.length === 1)
  assert.equal(await hold.release(), false)
  await until(async () => (await having(name)) === 0)
  await client.close()
})

test('the end of a program releases the lock on all servers', async () => {
  const name = freshName()
  const script = `(async () => {
    const client = await Client.connect(undefined, { restartDelay: 0 })
    const hold = await client.lock(${JSON.stringify(name)}).acquire()
    console.log(hold.isHeld)
    process.exit()
  })()`
  const { stdout, stderr } = await run(url(), script)
  assert.equal(stdout, 'true\n', stderr)
  await until(async () => (await having(name)) === 0)
})

test('a close does not wait for a server that is down', async () => {
  const [client, name] = [await connect(), freshName()]
  await client.lock(name).acquire()
  await servers.shift().stop()
  await client.close()
  assert.equal(await having(name), 0)
})

test('a server that was just started has no vote', async () => {
  await assert.rejects(Client.connect(url(), { restartDelay: '1h' }), (error) => {
    assert.ok(error instanceof UnavailableError, error)
    assert.match(error.message, /was started .*restart_delay/)
    return true
  })
})

test('what a quorum has not is refused, word for word', async () => {
  const client = await connect()
  const [lock, hold] = [client.lock('n'), await client.lock('held').acquire()]
  const none = (what) => `the URL names a quorum, which has locks alone, and no ${what}; make a client of one of its servers`
  const kind = (name) =>
    `kind is "${name}", which needs a server that has everything; a quorum takes reentrant, simple and the kinds of other libraries that are simple locks`
  const fencing = 'fencing is true, but the servers of a quorum do not count together; leave it out'
  const several = 'lock "n": the lock of a quorum has a key on each server; ask each of them, by a client of its own'
  const token = 'lock "n": token is given, but the lock of a quorum takes none; leave it out'
  const lease = (name) =>
    `lock "${name}": a lease of 60s is longer than restart_delay, 30s: a server that was restarted could vote for a second owner; give the client a restart_delay of at least 60s, on all clients`
  const careful = new Client(url())
  const refused = [
    [() => client.rwLock('n'), none('read-write lock')],
    [() => client.semaphore('n', 1), none('semaphore')],
    [() => client.plainSemaphore('n'), none('plain semaphore')],
    [() => client.latch('n'), none('latch')],
    [() => client.multiLock(['a', 'b']), none('multi lock')],
    [() => client.multiLock([]), none('multi lock')],
    [() => client.lock('n', { kind: 'fair' }), kind('fair')],
    [() => client.lock('n', { kind: 'adaptive' }), kind('adaptive')],
    [() => client.lock('n', { fencing: true }), fencing],
    [() => client.lock('n', { fencingExpires: true }), fencing],
    [() => new Client(url(), { fencing: true }), fencing],
    [() => new Client(url(), { kind: 'fair' }), kind('fair')],
    [() => lock.isLocked(), several],
    [() => lock.holders(), several],
    [() => lock.waiters(), several],
    [() => lock.forceRelease(), several],
    [() => lock.acquire({ token: 't' }), token],
    [() => client.lock('n', { kind: 'simple' }).acquire({ token: 't' }), token],
    [() => lock.releaseToken('t'), token],
    [() => lock.extendToken('t', 5000), token],
    [() => hold.reenter(), 'lock "held": the lock of a quorum is not entered again by its hold; acquire it once more with the same key'],
    [() => careful.lock('n').acquire({ lease: '60s' }), lease('n')],
    [() => careful.lock('n', { watchdogLease: '60s' }).acquire(), lease('n')],
  ]
  const wrong = []
  for (const [use, text] of refused) {
    const error = await (async () => use())().catch((thrown) => thrown)
    if (!(error instanceof InvalidArgumentError) || error.message !== text) wrong.push(`${use}: ${error}`)
  }
  assert.deepEqual(wrong, [])
  await hold.release()
  for (const hosts of ['a,b', 'a,b,c,d', 'a,b,a']) assert.throws(() => new Client(`redis+quorum://${hosts}`), InvalidArgumentError)
  await Promise.all([client.close(), careful.close()])
})

test('a lease of a hold is extended within the delay of a restart', async () => {
  const patient = new Client(url(), { restartDelay: 1000 })
  const lock = patient.lock(freshName(), { watchdogLease: 1000 })
  // The servers have a vote two seconds after their start.
  const unavailable = (error) => assert.ok(error instanceof UnavailableError, error)
  const hold = await until(() => lock.acquire().catch(unavailable))
  await assert.rejects(hold.extend(5000), { name: 'InvalidArgumentError', message: /a lease of 5s is longer than restart_delay, 1s/ })
  await hold.release()
  await patient.close()
})

test('a key enters again, and each release gives up one level', async () => {
  const [client, other, name] = [await connect(), await connect(), freshName()]
  const outer = await client.lock(name).acquire({ key: 7 })
  const inner = await client.lock(name).acquire({ key: 7 })
  assert.deepEqual([outer.holdCount, inner.holdCount], [2, 2])
  await inner.release()
  assert.equal(await other.lock(name).tryAcquire(), null)
  await outer.release()
  await until(async () => (await having(name)) === 0)
  await Promise.all([client.close(), other.close()])
})
