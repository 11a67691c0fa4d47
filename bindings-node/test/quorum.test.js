'use strict'
// The lock of a quorum: servers that know nothing of each other, of which most are enough.

const assert = require('node:assert/strict')
const { after, beforeEach } = require('node:test')
const { Client, InvalidArgumentError, LockLostError, UnavailableError } = require('../index.js')
const { Connection, Server, aborted, freshName, test, until } = require('./support/index.js')

// A machine may stand still for nearly two thirds of it without a loss.
const LEASE = 6000
let servers = []

const url = () => `redis+quorum://${servers.map(({ port }) => `127.0.0.1:${port}`).join(',')}`
// Servers that were started now have lost nothing.
const connect = () => Client.connect(url(), { restartDelay: 0 })

beforeEach(async () => {
  await stop()
  servers = await Promise.all([Server.start(), Server.start(), Server.start()])
})
after(() => stop())

const stop = () => Promise.all(servers.splice(0).map((server) => server.stop()))

// How many servers have the key.
async function having(name) {
  const asked = servers.map(async ({ port }) => {
    const redis = await Connection.open(port)
    const there = await redis.send('EXISTS', name)
    redis.end()
    return there
  })
  return (await Promise.all(asked)).reduce((sum, there) => sum + there, 0)
}

test('the lock of a quorum is on all servers and excludes others', async () => {
  const [client, other, name] = [await connect(), await connect(), freshName()]
  const hold = await client.lock(name).acquire()
  assert.equal(await having(name), 3)
  assert.ok(hold.isHeld && hold.remaining > 20_000)
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

test('a server that was just started has no vote', async () => {
  await assert.rejects(Client.connect(url(), { restartDelay: '1h' }), (error) => {
    assert.ok(error instanceof UnavailableError, error)
    assert.match(error.message, /was started .*restart_delay/)
    return true
  })
})

test('what a quorum has not is refused', async () => {
  const client = await connect()
  const name = freshName()
  const refused = [
    () => client.lock(name, { fencing: true }),
    () => client.rwLock(name),
    () => client.semaphore(name, 1),
    () => client.latch(name),
    () => client.multiLock(['a', 'b']),
  ]
  for (const make of refused) assert.throws(make, InvalidArgumentError)
  await assert.rejects(client.lock(name).isLocked(), InvalidArgumentError)
  for (const hosts of ['a,b', 'a,b,c,d', 'a,b,a']) assert.throws(() => new Client(`redis+quorum://${hosts}`), InvalidArgumentError)
  await client.close()
})
