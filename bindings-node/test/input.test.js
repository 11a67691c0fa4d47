'use strict'
// Bad input: a typed error that names the value and the remedy, and nothing is sent.

const assert = require('node:assert/strict')
const { once } = require('node:events')
const { createServer } = require('node:net')
const redlatch = require('../index.js')
const { Server, freshName, shared, test } = require('./support/index.js')

const { Client, InvalidArgumentError, LockError } = redlatch
const context = shared()

// Checks the class and that the text has all these words.
function refusal(errorClass, ...words) {
  return (error) => {
    assert.ok(error instanceof errorClass && error instanceof LockError && error instanceof Error, `${error}`)
    assert.equal(error.name, errorClass.name)
    for (const word of words) assert.ok(error.message.includes(word), `${word} is not in: ${error.message}`)
    return true
  }
}

async function sendsNothing(action) {
  const before = context.client.stats().calls
  await action()
  assert.equal(context.client.stats().calls, before)
}

test('names', () =>
  sendsNothing(() => {
    const { client } = context
    assert.throws(() => client.lock(''), refusal(InvalidArgumentError, 'empty', '1 to 1,024'))
    assert.throws(() => client.lock('x'.repeat(1025)), refusal(InvalidArgumentError, '1025', '1,024'))
    assert.throws(() => client.lock('ü'.repeat(513)), refusal(InvalidArgumentError, '1026'))
    assert.throws(() => client.lock('a\ud800b'), refusal(InvalidArgumentError, 'surrogate', 'index 1'))
    assert.throws(() => client.lock('\udc00'), refusal(InvalidArgumentError, 'surrogate'))
    for (const name of [undefined, null, 5, {}, ['a'], Symbol('a')]) {
      assert.throws(() => client.lock(name), refusal(InvalidArgumentError, 'lock name', 'string'))
    }
    assert.throws(() => client.lock(['a', 'b']), refusal(InvalidArgumentError, 'an array', 'client.multiLock(names)'))
  }))

test('what other libraries call a timeout is told to be wait', () =>
  sendsNothing(async () => {
    const { client } = context
    const words = refusal(InvalidArgumentError, 'timeout', 'wait', 'acquire()')
    assert.throws(() => client.lock('a', { timeout: 5 }), words)
    await assert.rejects(client.lock('a').acquire({ timeout: 5 }), words)
    assert.throws(() => new Client('redis://h', { timeout: 5 }), refusal(InvalidArgumentError, 'connectTimeout'))
  }))

test('an unknown option of an acquisition is told all that there are', () =>
  sendsNothing(() =>
    assert.rejects(
      context.client.lock('a').acquire({ zzz: 5 }),
      refusal(InvalidArgumentError, 'wait', 'lease', 'token', 'signal', 'key', 'hold', 'context'),
    ),
  ))

test('a name may be any text', async () => {
  for (const name of ['ü€😀', ' ', '\0', '{', 'a{b}c', 'x'.repeat(1024)]) {
    const lock = context.client.lock(name)
    assert.equal(lock.name, name)
    await lock.using(async () => assert.equal(await context.redis.send('EXISTS', name), 1))
  }
})

test('times', () =>
  sendsNothing(async () => {
    const { client } = context
    for (const value of [NaN, Infinity, -1, -0.001, 0, 99.9, 1e300, 86_400_001]) {
      assert.throws(() => client.lock('a', { lease: value }), refusal(InvalidArgumentError, 'lease', '100 ms'))
      assert.throws(() => client.lock('a', { watchdogLease: value }), refusal(InvalidArgumentError, 'watchdogLease'))
      await assert.rejects(client.lock('a').acquire({ lease: value }), refusal(InvalidArgumentError, 'lease'))
    }
    for (const value of [1000, 0, null]) {
      const words = refusal(InvalidArgumentError, `wait is ${value}`, 'tryAcquire() does not wait')
      await assert.rejects(client.lock('a').tryAcquire({ wait: value }), words)
    }
    for (const value of [NaN, -1, -Infinity, 1e300]) {
      await assert.rejects(client.lock('a').acquire({ wait: value }), refusal(InvalidArgumentError, 'wait'))
      await assert.rejects(client.close(value), refusal(InvalidArgumentError, 'closeLimit'))
    }
    assert.throws(() => client.lock('a', { lease: 'soon' }), refusal(InvalidArgumentError, 'lease', 'soon'))
    assert.throws(() => client.lock('a', { lease: true }), refusal(InvalidArgumentError, 'lease', 'true'))
    for (const value of [{}, [], 5n, Symbol('a'), () => {}]) {
      assert.throws(() => client.lock('a', { lease: value }), refusal(InvalidArgumentError, 'lease', 'number'))
      await assert.rejects(client.lock('a').acquire({ wait: value }), refusal(InvalidArgumentError, 'wait', 'number'))
    }
  }))

test('fractions of a millisecond and times as text are accepted', async () => {
  const lock = context.client.lock(freshName(), { lease: 60_000.5 })
  await lock.using({ wait: 60_000.5, lease: '20.5s' }, (hold) => assert.ok(hold.remaining < 20_500))
  await lock.using({ lease: null }, (hold) => assert.ok(hold.remaining > 30_000 && hold.remaining < 60_001))
})

test('extend', async () => {
  const hold = await context.client.lock(freshName()).acquire()
  await sendsNothing(async () => {
    for (const value of [NaN, -1, 0, Infinity]) {
      await assert.rejects(hold.extend(value), refusal(InvalidArgumentError, 'lease'))
    }
    for (const value of [undefined, {}]) {
      await assert.rejects(hold.extend(value), refusal(InvalidArgumentError, 'lease', 'number'))
    }
  })
  await hold.release()
})

test('unknown options, in the spelling of the caller', () =>
  sendsNothing(async () => {
    const { client, url } = context
    assert.throws(() => client.lock('a', { leese: 5 }), refusal(InvalidArgumentError, '"leese"', 'lease'))
    const misspelt = refusal(InvalidArgumentError, '"watchDogLease"', 'watchdogLease')
    assert.throws(() => client.lock('a', { watchDogLease: 5 }), misspelt)
    assert.throws(() => client.lock('a', { signal: null }), refusal(InvalidArgumentError, 'signal'))
    await assert.rejects(client.lock('a').acquire({ waitFor: 5 }), refusal(InvalidArgumentError, '"waitFor"', 'wait'))
    assert.throws(() => new Client(url, { conectTimeout: 5 }), refusal(InvalidArgumentError, 'connectTimeout'))
    for (const options of [null, 5, 'lease', true, []]) {
      assert.throws(() => client.lock('a', options), refusal(InvalidArgumentError, 'options', 'object'))
      await assert.rejects(client.lock('a').acquire(options), refusal(InvalidArgumentError, 'options', 'object'))
    }
  }))

test('options are spelled as JavaScript does, and what was typed is shown as it was', () =>
  sendsNothing(() => {
    const spelled = (options, ...words) =>
      assert.throws(() => context.client.lock('a', options), refusal(InvalidArgumentError, ...words))
    spelled({ watchdog_lease: 3000 }, '"watchdog_lease"', 'did you mean watchdogLease?')
    spelled({ LEASE: 3000 }, '"LEASE"', 'did you mean lease?')
    spelled({ lease_time: 3000 }, '"lease_time"', 'watchdogLease')
    assert.throws(() => new Client('redis://h', { Timeout: 3 }), refusal(InvalidArgumentError, '"Timeout"'))
  }))

test('what means something in JavaScript only', () =>
  sendsNothing(async () => {
    const lock = context.client.lock('a')
    for (const signal of [null, 5, {}, 'abort']) {
      await assert.rejects(lock.acquire({ signal }), refusal(InvalidArgumentError, 'signal', 'AbortSignal'))
    }
    for (const key of [null, -1, 0.5, NaN, 2 ** 53, 2n ** 64n, -1n, 'me', {}]) {
      await assert.rejects(lock.acquire({ key }), refusal(InvalidArgumentError, 'key', 'whole number'))
    }
    for (const hold of [null, 5, {}]) {
      await assert.rejects(lock.acquire({ hold }), refusal(InvalidArgumentError, 'hold', 'Hold'))
    }
    for (const given of [null, 5, 'yes']) {
      await assert.rejects(lock.acquire({ context: given }), refusal(InvalidArgumentError, 'context', 'true or false'))
      await assert.rejects(lock.using({ context: given }, () => {}), refusal(InvalidArgumentError, 'context'))
      assert.throws(() => context.client.lock('a', { context: given }), refusal(InvalidArgumentError, 'context'))
    }
    for (const fn of [undefined, null, 5]) {
      await assert.rejects(lock.using({}, fn), refusal(InvalidArgumentError, 'function'))
    }
    await assert.rejects(lock.using(), refusal(InvalidArgumentError, 'function'))
  }))

test('URLs, without their secrets', async () => {
  const secret = ['http://u:geheim@h', 'redis://u:geheim@h:port', 'rediss://:geheim@h:port', 'redis://:geheim\ud800@h']
  for (const url of [...secret, '', 'localhost:6379', 5, {}]) {
    const shows = (error) => refusal(InvalidArgumentError)(error) && !error.stack.includes('geheim')
    assert.throws(() => new Client(url, {}), shows)
    await assert.rejects(Client.connect(url, {}), shows)
  }
})

test('the URL of the environment', async () => {
  const before = process.env.REDLATCH_URL
  try {
    delete process.env.REDLATCH_URL
    assert.throws(() => new Client(), refusal(InvalidArgumentError, 'REDLATCH_URL'))
    process.env.REDLATCH_URL = context.url
    await using(await Client.connect(), (client) => client.lock(freshName()).using(() => {}))
    await using(await Client.connect({ fencing: true }), (client) =>
      client.lock(freshName()).using((hold) => assert.equal(typeof hold.fencingToken, 'bigint')),
    )
  } finally {
    if (before === undefined) delete process.env.REDLATCH_URL
    else process.env.REDLATCH_URL = before
  }
})

async function using(client, fn) {
  try {
    await fn(client)
  } finally {
    await client.close()
  }
}

test('a server that cannot be reached', async () => {
  const server = await Server.start()
  await server.stop()
  await assert.rejects(
    Client.connect(server.url, { connectTimeout: 1000 }),
    refusal(redlatch.UnavailableError, `127.0.0.1:${server.port}`),
  )
  const lazy = new Client(server.url)
  await assert.rejects(lazy.lock('a').acquire(), refusal(redlatch.UnavailableError))
  await lazy.close()
})

test('a wrong password', async () => {
  const server = await Server.start({ args: ['--requirepass', 'richtig'] })
  try {
    for (const url of [server.url, `redis://:geheim@127.0.0.1:${server.port}`]) {
      await assert.rejects(Client.connect(url), (error) => {
        return refusal(redlatch.AuthError)(error) && !error.stack.includes('geheim')
      })
    }
    await using(await Client.connect(`redis://:richtig@127.0.0.1:${server.port}`), (client) =>
      client.lock('a').using(() => {}),
    )
  } finally {
    await server.stop()
  }
})

test('a key of another type is not touched', async () => {
  const name = freshName()
  await context.redis.send('SET', name, 'mine')
  const lock = context.client.lock(name)
  for (const action of ['acquire', 'tryAcquire', 'holder', 'isLocked', 'forceRelease']) {
    await assert.rejects(lock[action](), (error) => {
      return refusal(redlatch.ForeignKindError, name)(error) && error.lockName === name
    })
  }
  assert.equal(await context.redis.send('GET', name), 'mine')
})

test('a closed client', async () => {
  const client = await Client.connect(context.url)
  const lock = client.lock(freshName())
  const hold = await lock.acquire()
  const waiting = lock.acquire()
  const refused = assert.rejects(waiting, refusal(redlatch.ClosedError, lock.name, 'open a new one'))
  assert.deepEqual(await client.close(), [])
  await refused
  assert.equal(await lock.acquire().catch((error) => error.code), 'ERR_REDLATCH_CLOSED')
  await assert.rejects(lock.isLocked(), refusal(redlatch.ClosedError, lock.name, 'open a new one'))
  assert.equal(hold.isHeld, false)
  assert.throws(() => hold.check(), (error) => error.reason === 'closed')
  assert.equal(await hold.release(), false)
  assert.deepEqual(await client.close(), [])
  assert.deepEqual(await client.close(1000), [])
  assert.equal(await context.client.lock(lock.name).isLocked(), false)
})

test('a client closed before its first use', async () => {
  const client = new Client(context.url)
  assert.deepEqual(await client.close(), [])
  await assert.rejects(client.lock('a').acquire(), refusal(redlatch.ClosedError, 'open a new one'))
})

test('a server that never answered is not taken for a holder', async () => {
  const silent = createServer(() => {}).listen(0, '127.0.0.1')
  await once(silent, 'listening')
  const client = new Client(`redis://127.0.0.1:${silent.address().port}`, { connectTimeout: 60_000 })
  const words = refusal(redlatch.UnavailableError, 'no connection to the server within 1.2s')
  await assert.rejects(client.lock(freshName()).acquire({ wait: 1200 }), words)
  await client.close()
  silent.close()
})
