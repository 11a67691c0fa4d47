'use strict'
// Events are told for logs: as an event of the client and on a diagnostics channel.

const assert = require('node:assert/strict')
const diagnostics = require('node:diagnostics_channel')
const { errorMonitor, once } = require('node:events')
const { AuthError, Client, LockError } = require('../index.js')
const { Server, freshName, run, shared, test, until } = require('./support/index.js')

const context = shared({ password: 'geheim' })

test('events of a client, in order, without secrets', async () => {
  const client = new Client(context.url, { debugEvents: true })
  const events = []
  client.on('event', (event) => events.push(event))
  const published = []
  const listen = (message) => published.push(message)
  diagnostics.subscribe('redlatch', listen)
  const lock = client.lock(freshName())
  await lock.using(() => {})
  await until(() => events.some(({ kind }) => kind === 'released'))
  const kinds = events.map(({ kind }) => kind)
  assert.ok(kinds.indexOf('connected') < kinds.indexOf('acquired'))
  assert.ok(kinds.indexOf('acquired') < kinds.indexOf('released'))
  const acquired = events.find(({ kind }) => kind === 'acquired')
  assert.deepEqual([acquired.level, acquired.lockName, typeof acquired.text], ['debug', lock.name, 'string'])
  assert.ok(!JSON.stringify(events).includes('geheim'))
  const own = published.filter((message) => message.client === client)
  assert.deepEqual(own.map(({ kind }) => kind).slice(0, kinds.length), kinds)
  diagnostics.unsubscribe('redlatch', listen)
  await client.close()
})

test('a connection that comes and goes is told without debug events', async () => {
  const client = await Client.connect(context.url)
  const kinds = []
  client.on('event', ({ kind }) => kinds.push(kind))
  // An idle connection that is cut is no news.
  await client.lock(freshName()).acquire()
  await context.redis.send('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
  await until(() => kinds.includes('disconnected') && kinds.includes('connected'))
  await client.close()
})

test('a listener that throws is an uncaught exception, and loses no answer', async () => {
  const ended = await run(
    context.url,
    `(async () => {
      const thrown = []
      process.on('uncaughtException', (error) => thrown.push(error.message))
      const client = new Client(undefined, { debugEvents: true })
      client.on('event', () => { throw new Error('event') })
      client.on('lost', () => { throw new Error('lost') })
      const lock = client.lock('throws')
      await lock.using(() => {})
      const hold = await lock.acquire()
      await lock.forceRelease()
      await hold.release()
      await lock.using(() => {})
      await client.close()
      console.log([...new Set(thrown)].sort().join())
    })()`,
  )
  assert.deepEqual([ended.code, ended.stdout], [0, 'event,lost\n'], ended.stderr)
})

test('connect, error and end are told by the names that clients of Redis have', async () => {
  const server = await Server.start()
  const client = new Client(server.url)
  const told = []
  for (const name of ['connect', 'error', 'end']) client.on(name, (error) => told.push([name, error?.code]))
  await client.lock('a').using(() => {})
  await until(() => told.length === 1)
  await server.stop()
  await until(() => told.length === 2)
  assert.deepEqual(told, [['connect', undefined], ['error', 'ERR_REDLATCH_UNAVAILABLE']])
  await client.close()
  await client.close()
  await until(() => told.length === 3)
  assert.deepEqual(told[2], ['end', undefined])
})

test('an event that a client does not have is refused', async () => {
  const client = new Client(context.url)
  const refused = { code: 'ERR_REDLATCH_INVALID_ARGUMENT', message: /^"ready" is no event of a client; there are lost, event, connect, error, end\. / }
  const nothing = () => {}
  for (const method of ['on', 'once', 'addListener', 'prependListener', 'prependOnceListener']) {
    assert.throws(() => client[method]('ready', nothing), refused, method)
    assert.equal(client[method]('connect', nothing), client)
    client.off('connect', nothing)
  }
  await assert.rejects(once(client, 'ready'), refused)
  client.on(errorMonitor, nothing)
  client.on('newListener', nothing)
  await client.close()

  class Shop extends Client {}
  const shop = new Shop(context.url)
  const told = once(shop, 'sold')
  shop.emit('sold', 42)
  assert.deepEqual(await told, [42])
  await shop.close()
})

test('an outage is one error, and its end another connect', async () => {
  const server = await Server.start()
  const client = new Client(server.url, { debugEvents: true })
  const told = []
  for (const name of ['connect', 'error']) client.on(name, () => told.push(name))
  let failures = 0
  client.on('event', ({ kind }) => (failures += kind === 'disconnected'))
  await client.lock('a').using(() => {})
  await server.stop()
  await until(() => failures >= 4)
  assert.deepEqual(told, ['connect', 'error'])
  const again = await Server.start({ port: server.port })
  await until(() => told.length > 2)
  assert.deepEqual(told, ['connect', 'error', 'connect'])
  await client.close()
  await again.stop()
})

test('the error of a refused password says so, and a call has the class', async () => {
  const client = new Client(context.url.replace('geheim', 'falsch'))
  const told = new Promise((resolve) => client.once('error', resolve))
  await assert.rejects(client.lock('a').acquire(), AuthError)
  const error = await told
  assert.ok(error instanceof LockError)
  assert.deepEqual([error.code, error.cause], ['ERR_REDLATCH_UNAVAILABLE', undefined])
  assert.match(error.message, /^not connected: auth: .* user name /)
  await client.close()
})

test('an error that nobody listens to does not end the program', async () => {
  const server = await Server.start()
  const client = await Client.connect(server.url)
  const kinds = []
  client.on('event', ({ kind }) => kinds.push(kind))
  await server.stop()
  await until(() => kinds.includes('disconnected'))
  await client.close()
})
