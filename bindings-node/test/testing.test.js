'use strict'
// The server in memory: a test decides when a lock is lost and when the server is out of reach.

const { test } = require('node:test')
const assert = require('node:assert/strict')
const { spawn } = require('node:child_process')
const { once } = require('node:events')
const { connect } = require('node:net')
const { join } = require('node:path')
const { createInterface } = require('node:readline')
const { Client, ClosedError, InvalidArgumentError, LockLostError, UnavailableError } = require('..')
const { MemoryServer } = require('../testing.js')
const { PACKAGE, runNode } = require('./support/index.js')

const LIMIT = 30_000

// A server, and as many clients of it as are asked for; all of them end with the test.
async function served(t, count = 1, options = {}) {
  const server = new MemoryServer()
  const clients = await Promise.all(Array.from({ length: count }, () => Client.connect(server.url, options)))
  t.after(async () => {
    server.resume()
    await Promise.all(clients.map((client) => client.close()))
    server.close()
  })
  return [server, ...clients]
}

// A hold keeps no process alive, and so no test.
async function aborted(signal) {
  const alive = setTimeout(() => {}, LIMIT)
  if (!signal.aborted) await once(signal, 'abort')
  clearTimeout(alive)
}

test('one client waits for the other', async (t) => {
  const [, mine, other] = await served(t, 2)
  const hold = await mine.lock('n').acquire()
  assert.equal(await other.lock('n').tryAcquire(), null)
  const waits = other.lock('n').acquire()
  await hold.release()
  const got = await waits
  assert.ok(got.isHeld)
  await got.release()
})

test('another process waits too', async (t) => {
  const [server, client] = await served(t)
  const hold = await client.lock('n').acquire()
  const code = `
    const { Client } = require(${JSON.stringify(PACKAGE)})
    Client.connect().then(async (client) => {
      console.log(await client.lock('n').tryAcquire() === null ? 'busy' : 'free')
      await client.lock('n').using(() => console.log('mine'))
      await client.close()
    })`
  const child = spawn(process.execPath, ['-e', code], { env: { ...process.env, REDLATCH_URL: server.url }, stdio: ['ignore', 'pipe', 'inherit'] })
  t.after(() => child.kill())
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]()
  assert.equal((await lines.next()).value, 'busy')
  await hold.release()
  assert.equal((await lines.next()).value, 'mine')
})

test('a holder is told that its lock was taken away', async (t) => {
  const [server, client] = await served(t)
  const hold = await client.lock('n').acquire()
  assert.equal(server.takeAway('n'), true)
  await aborted(hold.signal)
  assert.ok(hold.signal.reason instanceof LockLostError)
  assert.equal(server.takeAway('n'), false)
  assert.throws(() => hold.check(), LockLostError)
})

test('a lease runs out when the clock is moved', async (t) => {
  const [server, mine, other] = await served(t, 2)
  const hold = await mine.lock('n').acquire({ lease: '10m' })
  server.advance('599s')
  assert.equal(await other.lock('n').tryAcquire(), null)
  server.advance(2000)
  await aborted(hold.signal)
  assert.ok(await other.lock('n').acquire({ wait: LIMIT }))
  assert.throws(() => hold.check(), LockLostError)
})

test('a paused server is unavailable until it is resumed', async (t) => {
  const [server, client] = await served(t, 1, { connectTimeout: 200, outage: 300 })
  server.pause()
  await assert.rejects(client.lock('n').acquire(), UnavailableError)
  server.resume()
  assert.ok(await client.lock('n').acquire({ wait: LIMIT }))
})

test('a hold outlives its connection', async (t) => {
  const [server, client] = await served(t)
  const hold = await client.lock('n').acquire()
  server.disconnect()
  await hold.extend(60_000)
  assert.ok(hold.isHeld)
  await hold.release()
})

test('all locks are lost when the server is emptied', async (t) => {
  const [server, client] = await served(t)
  const hold = await client.lock('n').acquire()
  server.empty()
  await aborted(hold.signal)
  assert.throws(() => hold.check(), LockLostError)
})

test('a closed server is gone and says so', async () => {
  const server = new MemoryServer()
  const port = Number(new URL(server.url).port)
  server[Symbol.dispose ?? Symbol.for('nodejs.dispose')]()
  server.close()
  const [error] = await once(connect(port, '127.0.0.1'), 'error')
  assert.equal(error.code, 'ECONNREFUSED')
  assert.throws(() => server.pause(), ClosedError)
})

test('a wrong time or name is refused', (t) => {
  const server = new MemoryServer()
  t.after(() => server.close())
  for (const wrong of [-1, Number.NaN, 'soon', undefined, {}]) assert.throws(() => server.advance(wrong), InvalidArgumentError, `${wrong}`)
  assert.throws(() => server.takeAway(7), InvalidArgumentError)
})

test('it keeps no process alive', async () => {
  const code = `const { MemoryServer } = require(${JSON.stringify(join(PACKAGE, 'testing.js'))}); globalThis.kept = new MemoryServer()`
  const { code: ended, stderr } = await runNode(['-e', code])
  assert.equal(ended, 0, stderr)
})

test('it is the same class for import and require', async () => {
  assert.equal((await import('../testing.mjs')).MemoryServer, MemoryServer)
})
