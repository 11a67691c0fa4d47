'use strict'
// The Web Locks API: what its specification asks for, within one client, among clients, and among processes.

const assert = require('node:assert/strict')
const { spawn } = require('node:child_process')
const { once } = require('node:events')
const { join } = require('node:path')
const { createInterface } = require('node:readline')
const { setImmediate: turn } = require('node:timers/promises')
const { inspect } = require('node:util')
const { after, beforeEach } = require('node:test')
const { Client, ForeignKindError, InvalidArgumentError, LockLostError } = require('../index.js')
const webLocks = require('../web-locks.js')
const { PACKAGE, aborted, collector, freshName, run, shared, test, until } = require('./support/index.js')

const { Lock, LockManager, locksOf } = webLocks
const context = shared()
const gc = collector()

let locks
let name
beforeEach(() => {
  locks = locksOf(context.client)
  name = freshName()
})

// Another client in this process.
async function withOther(work) {
  const client = await Client.connect(context.url)
  try {
    return await work(locksOf(client), client)
  } finally {
    await client.close()
  }
}

// A request whose callback goes on until it is told to end. `order` notes what is granted.
function hold(name, options = {}, { manager = locks, order = [], label = name } = {}) {
  const held = { granted: undefined, end: undefined, done: undefined }
  held.granted = new Promise((resolve) => {
    held.done = manager.request(name, options, (lock) => {
      order.push(label)
      resolve(lock)
      return new Promise((end) => (held.end = end))
    })
  })
  held.done.catch(() => {})
  return held
}

const notSupported = (error) => error instanceof DOMException && error.name === 'NotSupportedError'
const stolen = (error) => {
  assert.ok(error instanceof DOMException, inspect(error))
  assert.equal(error.name, 'AbortError')
  assert.match(error.message, /was stolen/)
  assert.ok(error.cause instanceof LockLostError)
  return true
}

// --- arguments ---

test('what is no request is refused', async () => {
  const never = () => assert.fail('called')
  for (const args of [[], [name], [name, {}], [name, {}, undefined], [name, 1, never], [name, 'shared', never], [name, null]]) {
    await assert.rejects(locks.request(...args), TypeError, inspect(args))
  }
  await assert.rejects(locks.request(Symbol('a'), never), TypeError)
  for (const options of [{ mode: 'read' }, { mode: null }, { mode: 1 }, { mode: 'toString' }, { signal: null }, { signal: {} }, { signal: 'abort' }]) {
    await assert.rejects(locks.request(name, options, never), TypeError, inspect(options))
  }
  const { signal } = new AbortController()
  const unsupported = [
    { steal: true, ifAvailable: true },
    { steal: true, mode: 'shared' },
    { steal: true, signal },
    { ifAvailable: true, signal },
    { steal: 1, mode: 'shared' },
  ]
  for (const options of unsupported) await assert.rejects(locks.request(name, options, never), notSupported, inspect(options))
  for (const reserved of ['-', '-a', '--']) await assert.rejects(locks.request(reserved, never), notSupported)
  assert.throws(() => new LockManager(), TypeError)
  assert.throws(() => new Lock(), TypeError)
  assert.throws(() => locksOf({}), TypeError)
  await assert.rejects(locks.query({ names: 'letters' }), TypeError)
  const { pending } = await locks.query()
  assert.deepEqual(pending, [])
})

test('members are read in the order of their names, and converted', async () => {
  const read = []
  const options = Object.defineProperties(
    {},
    Object.fromEntries(['steal', 'signal', 'mode', 'ifAvailable'].map((member) => [member, { get: () => void read.push(member) }])),
  )
  assert.equal(await locks.request(name, options, ({ mode }) => mode), 'exclusive')
  assert.deepEqual(read, ['ifAvailable', 'mode', 'signal', 'steal'])
  const mode = { toString: () => 'shared' }
  assert.equal(await locks.request(name, { mode, ifAvailable: 0, steal: '' }, (lock) => lock.mode), 'shared')
  for (const none of [null, undefined, {}, () => {}]) assert.equal(await locks.request(name, none, () => 1), 1)
})

test('any string is a name', async () => {
  const strings = ['', ' ', 'a\0b', 'Ü😀', '{', '}', '{}', 'a{b}c', '\ud800', '\ud801', '\udc00\ud800', '\ufffd', 'x'.repeat(256)]
  strings.push('x'.repeat(257), 'x'.repeat(300_000), '😀'.repeat(128), '\u2028', 'undefined', 'a-')
  // All at once: no two of them are one lock.
  const all = strings.map((each) => hold(each))
  const got = await Promise.all(all.map(({ granted }) => granted))
  assert.deepEqual(got.map((lock) => lock.name), strings)
  for (const each of strings) {
    assert.equal(await withOther((others) => others.request(each, { ifAvailable: true }, (lock) => lock)), null, each.slice(0, 9))
  }
  for (const each of all) each.end()
  await Promise.all(all.map(({ done }) => done))
  for (const [given, text] of [[undefined, 'undefined'], [null, 'null'], [1, '1'], [{ toString: () => 'made' }, 'made']]) {
    assert.equal(await locks.request(given, (lock) => lock.name), text)
  }
})

test('names have a prefix in Redis', async () => {
  const held = hold(name)
  await held.granted
  assert.equal(await context.redis.send('EXISTS', `web-locks:${name}`), 1)
  // A read-write lock like any other.
  assert.equal(await context.client.rwLock(`web-locks:${name}`).write.isLocked(), true)
  held.end()
  await held.done
  assert.equal(await context.redis.send('EXISTS', `web-locks:${name}`), 0)
  await context.redis.send('SET', `web-locks:${name}`, 'data')
  await assert.rejects(locks.request(name, () => {}), ForeignKindError)
})

// --- callbacks ---

test('the callback gets the lock later, and its result passes through', async () => {
  let called = false
  const answer = locks.request(name, (...args) => {
    called = true
    return args
  })
  assert.ok(answer instanceof Promise)
  assert.equal(called, false)
  const [lock, ...more] = await answer
  assert.deepEqual(more, [])
  assert.ok(lock instanceof Lock)
  assert.deepEqual([lock.name, lock.mode, lock.signal.aborted], [name, 'exclusive', false])
  assert.equal(String(lock), '[object Lock]')
  assert.equal(String(locks), '[object LockManager]')
  assert.match(inspect(lock), /^Lock \{ name: 'test:.*, mode: 'exclusive' \}$/)
  assert.throws(() => (lock.name = 'other'), TypeError)

  const own = await locks.request(name, function () {
    return this
  })
  assert.equal(own, undefined)
  assert.equal(await locks.request(name, async () => 'later'), 'later')
  assert.equal(await locks.request(name, () => ({ then: (resolve) => resolve('thenable') })), 'thenable')
  const error = new Error('mine')
  const throwing = () => {
    throw error
  }
  for (const options of [{}, { ifAvailable: true }, { steal: true }, { mode: 'shared' }]) {
    await assert.rejects(locks.request(name, options, throwing), (told) => told === error)
    await assert.rejects(locks.request(name, options, () => Promise.reject(error)), (told) => told === error)
  }
  assert.equal(await locks.request(name, { ifAvailable: true }, (got) => got !== null), true)
})

test('the lock is held while the promise of the callback is pending', async () => {
  const held = hold(name)
  await held.granted
  await withOther(async (others) => {
    const free = () => others.request(name, { ifAvailable: true }, (lock) => lock !== null)
    assert.equal(await free(), false)
    held.end('result')
    assert.equal(await held.done, 'result')
    assert.equal(await free(), true)
  })
})

test('a callback that nobody refers to keeps its lock', async () => {
  await withOther(async (others) => {
    await new Promise((resolve) => {
      const callback = () => (resolve(), new Promise(() => {}))
      others.request(name, callback).catch(() => {}) // the client is closed in the end
    })
    for (let round = 0; round < 10; round += 1) {
      gc()
      await turn()
    }
    assert.equal(await locks.request(name, { ifAvailable: true }, (lock) => lock), null)
    const { held } = await others.query()
    assert.deepEqual(held.map((info) => info.name), [name])
  })
})

// --- order ---

test('requests are granted in their order, and shared ones beside each other', async () => {
  const order = []
  const request = (label, mode) => hold(name, { mode }, { order, label })
  const first = request('w1', 'exclusive')
  const [r1, r2, w2, r3, w3] = [
    request('r1', 'shared'),
    request('r2', 'shared'),
    request('w2', 'exclusive'),
    request('r3', 'shared'),
    request('w3', 'exclusive'),
  ]
  await first.granted
  assert.deepEqual(order, ['w1'])
  first.end()
  await Promise.all([r1.granted, r2.granted])
  assert.deepEqual(order, ['w1', 'r1', 'r2'])
  // A reader does not pass the writer that waits.
  r1.end()
  await r1.done
  assert.equal(await locks.request(name, { mode: 'shared', ifAvailable: true }, (lock) => lock), null)
  assert.deepEqual(order, ['w1', 'r1', 'r2'])
  for (const [ending, next] of [[r2, w2], [w2, r3], [r3, w3]]) {
    ending.end()
    await next.granted
  }
  assert.deepEqual(order, ['w1', 'r1', 'r2', 'w2', 'r3', 'w3'])
  w3.end()
  await w3.done
})

test('names have nothing to do with each other', async () => {
  const [one, other] = [hold(name), hold(`${name}:b`)]
  await Promise.all([one.granted, other.granted])
  one.end()
  other.end()
  await Promise.all([one.done, other.done])
})

test('a lock that is not available at once is null', async () => {
  const mode = 'shared'
  const available = (options) => locks.request(name, { ...options, ifAvailable: true }, (lock) => lock?.mode ?? lock)
  assert.equal(await available(), 'exclusive')
  const reader = hold(name, { mode })
  await reader.granted
  assert.equal(await available({ mode }), mode)
  assert.equal(await available(), null)
  reader.end()
  await reader.done
  const writer = hold(name)
  await writer.granted
  assert.equal(await available({ mode }), null)
  assert.equal(await available(), null)
  let called = false
  const answer = locks.request(name, { ifAvailable: true }, () => (called = true))
  assert.equal(called, false)
  assert.equal(await answer, true)
  await assert.rejects(locks.request(name, { ifAvailable: true }, (lock) => lock.name), TypeError)
  writer.end()
  await writer.done
})

// --- signals ---

test('a signal ends the waiting, and nothing else', async () => {
  const never = () => assert.fail('called')
  const reason = new Error('enough')
  const { calls } = context.client.stats()
  await assert.rejects(locks.request(name, { signal: AbortSignal.abort(reason) }, never), (error) => error === reason)
  await assert.rejects(locks.request(name, { signal: AbortSignal.abort() }, never), { name: 'AbortError' })
  assert.equal(context.client.stats().calls, calls) // nothing was sent

  const order = []
  const held = hold(name, {}, { order, label: 'first' })
  await held.granted
  const controller = new AbortController()
  const { signal } = controller
  // More than ten, of which Node.js would warn as of a leak.
  const waiting = Array.from({ length: 20 }, () => locks.request(name, { signal }, never))
  const last = hold(name, {}, { order, label: 'last' })
  await until(() => context.client.stats().waiting >= 21)
  controller.abort(reason)
  for (const each of waiting) await assert.rejects(each, (error) => error === reason)
  assert.deepEqual((await locks.query()).pending.map((info) => info.name), [name])
  held.end()
  await last.granted
  last.end()
  await last.done

  // Once it is held, the signal has no effect.
  const late = new AbortController()
  const kept = await locks.request(name, { signal: late.signal }, async (lock) => {
    late.abort()
    await turn()
    assert.equal(await locks.request(name, { ifAvailable: true }, (other) => other), null)
    return lock.signal.aborted
  })
  assert.equal(kept, false)
})

test('an abort in the tick of the request leaves nothing behind', async () => {
  for (let round = 0; round < 50; round += 1) {
    const controller = new AbortController()
    const answer = locks.request(name, { signal: controller.signal }, () => assert.fail('called'))
    controller.abort()
    await assert.rejects(answer, { name: 'AbortError' })
  }
  assert.equal(await locks.request(name, () => 'free'), 'free')
})

// --- theft ---

test('a stolen request is rejected while its callback goes on', async () => {
  const victim = hold(name)
  const lock = await victim.granted
  const thief = hold(name, { steal: true })
  await assert.rejects(victim.done, stolen)
  assert.equal((await thief.granted).mode, 'exclusive')
  assert.ok((await aborted(lock.signal)) instanceof LockLostError)
  victim.end('ignored')
  await assert.rejects(victim.done, stolen)
  assert.equal(await locks.request(name, { ifAvailable: true }, (got) => got), null)
  // A thief is robbed like anybody else.
  assert.equal(await locks.request(name, { steal: true }, () => 'second'), 'second')
  await assert.rejects(thief.done, stolen)
  assert.equal(await locks.request(name, { steal: true }, () => 'of nobody'), 'of nobody')
  thief.end()
})

test('what a robbed callback throws later is nobody\'s error', async () => {
  let fail
  const victim = assert.rejects(
    locks.request(name, () => new Promise((_, reject) => (fail = reject))),
    stolen,
  )
  await until(() => fail !== undefined)
  await locks.request(name, { steal: true }, () => {})
  await victim
  const unhandled = []
  const listener = (error) => unhandled.push(error)
  process.on('unhandledRejection', listener)
  fail(new Error('too late'))
  await locks.request(name, () => {})
  await turn()
  process.off('unhandledRejection', listener)
  assert.deepEqual(unhandled, [])
})

test('a thief robs all readers, and comes before the queue', async () => {
  const order = []
  const readers = [1, 2, 3].map(() => hold(name, { mode: 'shared' }))
  await Promise.all(readers.map(({ granted }) => granted))
  const waiting = [
    hold(name, {}, { order, label: 'w1' }),
    hold(name, { mode: 'shared' }, { order, label: 'r1' }),
    hold(name, { mode: 'shared', signal: new AbortController().signal }, { order, label: 'r2' }),
  ]
  const thief = hold(name, { steal: true }, { order, label: 'thief' })
  const late = hold(name, {}, { order, label: 'w2' })
  assert.equal(await locks.request(name, { mode: 'shared', ifAvailable: true }, (lock) => lock), null)
  await thief.granted
  for (const { done } of readers) await assert.rejects(done, stolen)
  assert.deepEqual((await locks.query()).pending.map((info) => info.mode), ['exclusive', 'shared', 'shared', 'exclusive'])
  assert.deepEqual(order, ['thief'])
  thief.end()
  await waiting[0].granted
  waiting[0].end()
  await Promise.all([waiting[1].granted, waiting[2].granted])
  waiting[1].end()
  waiting[2].end()
  await late.granted
  late.end()
  await late.done
  assert.deepEqual(order, ['thief', 'w1', 'r1', 'r2', 'w2'])
})

test('thieves come one after the other', async () => {
  const order = []
  const victim = hold(name)
  await victim.granted
  const thieves = [1, 2, 3].map((label) => hold(name, { steal: true }, { order, label }))
  await assert.rejects(victim.done, stolen)
  await assert.rejects(thieves[0].done, stolen)
  await assert.rejects(thieves[1].done, stolen)
  await thieves[2].granted
  const waiting = hold(name, {}, { order, label: 'waits' })
  assert.equal((await locks.query()).pending.length, 1)
  assert.deepEqual(order, [1, 2, 3])
  thieves[2].end('mine')
  assert.equal(await thieves[2].done, 'mine')
  await waiting.granted
  const more = [4, 5].map((label) => hold(name, { steal: true }, { order, label }))
  const last = hold(name, {}, { order, label: 'last' })
  await more[1].granted
  more[1].end()
  await last.granted
  last.end('not robbed')
  assert.equal(await last.done, 'not robbed')
  assert.deepEqual(order, [1, 2, 3, 'waits', 4, 5, 'last'])
})

test('the mark of a thief outlives its client, and is no loss', async () => {
  const client = await Client.connect(context.url)
  client.on('lost', (error) => assert.fail(error))
  await locksOf(client).request(name, { steal: true }, () => {})
  await locksOf(client).request(name, { steal: true }, () => {})
  assert.equal(client.stats().holds, 1)
  assert.deepEqual(await client.close(), [])
  await turn()
  const left = await context.redis.send('PTTL', `web-locks-stolen:${name}`)
  assert.ok(left > 0 && left <= 60_000, String(left))
})

test('a request that waits while a thief comes can be given up', async () => {
  const held = hold(name)
  await held.granted
  const controller = new AbortController()
  const waiting = locks.request(name, { signal: controller.signal }, () => assert.fail('called'))
  const thief = hold(name, { steal: true })
  controller.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  await thief.granted
  thief.end()
  await thief.done
  assert.equal(await locks.request(name, () => 'free'), 'free')
})

// --- losses ---

test('another loss rejects the request with its reason', async () => {
  const victim = hold(name)
  const lock = await victim.granted
  await context.redis.send('DEL', `web-locks:${name}`)
  await assert.rejects(victim.done, (error) => error instanceof LockLostError && error.reason === 'deleted')
  assert.equal(lock.signal.aborted, true)
  victim.end()

  const client = await Client.connect(context.url)
  const closed = hold(name, {}, { manager: locksOf(client) })
  await closed.granted
  await client.close()
  await assert.rejects(closed.done, (error) => error instanceof LockLostError && error.reason === 'closed')
  await assert.rejects(locksOf(client).request(name, () => {}), { code: 'ERR_REDLATCH_CLOSED' })

  const short = await Client.connect(context.url, { lease: 200 })
  const expired = hold(name, {}, { manager: locksOf(short) })
  await assert.rejects(expired.done, (error) => error instanceof LockLostError && error.reason === 'expired')
  await short.close()
})

test('the error of a callback comes before a loss that is found later', async () => {
  const mine = new Error('mine')
  const client = await Client.connect(context.url, { tracking: false })
  const answer = locksOf(client).request(name, async () => {
    await context.redis.send('DEL', `web-locks:${name}`)
    throw mine
  })
  await assert.rejects(answer, (error) => error === mine && error.cause instanceof LockLostError)
  const found = locksOf(client).request(name, () => context.redis.send('DEL', `web-locks:${name}`))
  await assert.rejects(found, LockLostError)
  // Here a thief takes the lock, and the victim learns it only when it releases.
  for (const [end, told] of [[() => Promise.reject(mine), (error) => error === mine], [() => 'done', stolen]]) {
    let thief
    const victim = locksOf(client).request(name, async () => {
      thief = hold(name, { steal: true })
      await thief.granted
      return end()
    })
    await assert.rejects(victim, told)
    thief.end()
    await thief.done
  }
  // A loss of another lock is the error of the callback: it is not changed.
  const other = new LockLostError('other', { reason: 'forced' })
  await assert.rejects(locksOf(client).request(name, () => Promise.reject(other)), (error) => error === other)
  await client.close()
})

// --- query ---

test('a query tells what is held and what waits', async () => {
  const [a, b, c] = ['a', 'b', 'c'].map((letter) => `${name}:${letter}`)
  await withOther(async (others) => {
    const [first, second] = [hold(b, { mode: 'shared' }), hold(a)]
    await first.granted
    await second.granted
    const theirs = [hold(b, { mode: 'shared' }, { manager: others }), hold(c, {}, { manager: others })]
    await Promise.all(theirs.map(({ granted }) => granted))
    const waiting = [hold(b), hold(a, { mode: 'shared' }), hold(b, { mode: 'shared' })]
    const { held, pending } = await locks.query()
    const id = held[0].clientId
    const otherId = (await others.query()).held[0].clientId
    assert.match(id, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}$/)
    assert.notEqual(id, otherId)
    assert.deepEqual(held, [
      { name: b, mode: 'shared', clientId: id },
      { name: a, mode: 'exclusive', clientId: id },
      { name: b, mode: 'shared', clientId: otherId },
    ])
    assert.deepEqual(pending, [
      { name: b, mode: 'exclusive', clientId: id },
      { name: a, mode: 'shared', clientId: id },
      { name: b, mode: 'shared', clientId: id },
    ])
    const more = await locks.query({ names: [c, c, `${name}:free`] })
    assert.deepEqual(more.held.slice(3), [{ name: c, mode: 'exclusive', clientId: otherId }])
    assert.deepEqual((await others.query()).pending, [])
    for (const each of [first, second, ...theirs]) each.end()
    for (const each of waiting) {
      await each.granted
      each.end()
      await each.done
    }
    await Promise.all([first, second, ...theirs].map(({ done }) => done))
  })
  assert.deepEqual(await locks.query(), { held: [], pending: [] })
})

// --- clients and processes ---

test('a client has one manager, and the program its own', async () => {
  assert.equal(locksOf(context.client), locks)
  assert.ok(locks instanceof LockManager && webLocks.locks instanceof LockManager)
  const imported = await import('../web-locks.mjs')
  assert.deepEqual(Object.keys(imported).sort(), Object.keys(webLocks).sort())
  for (const [key, value] of Object.entries(webLocks)) assert.equal(imported[key], value, key)

  const code = `
    const { locks } = require(${JSON.stringify(join(PACKAGE, 'web-locks.js'))})
    locks.request('own', (lock) => lock.name).then(console.log, ({ name, kind }) => console.log(name, kind))`
  assert.equal((await run(context.url, code)).stdout, 'own\n')
  assert.match((await run('no URL', code)).stdout, /^InvalidArgumentError invalid_argument\n$/)
})

// Another process: it requests what it is told to, and tells what it gets.
const OTHER = `
  const { locks } = require(${JSON.stringify(join(PACKAGE, 'web-locks.js'))})
  const ends = new Map()
  const tell = (...said) => console.log(JSON.stringify(said))
  require('node:readline').createInterface({ input: process.stdin }).on('line', async (line) => {
    const [what, id, name, options] = JSON.parse(line)
    if (what === 'end') return ends.get(id)('result of ' + id)
    if (what === 'query') return tell('snapshot', id, await locks.query({ names: [name] }))
    const callback = (lock) => {
      tell('called', id, lock && lock.mode)
      return lock && new Promise((resolve) => ends.set(id, resolve))
    }
    locks.request(name, options, callback).then(
      (value) => tell('done', id, value),
      (error) => tell('failed', id, [error.name, error instanceof DOMException, error.cause?.kind, error.reason]),
    )
  })`

class Other {
  #said = new Map()

  constructor(url) {
    const env = { ...process.env, REDLATCH_URL: url }
    this.child = spawn(process.execPath, ['-e', OTHER], { env, stdio: ['pipe', 'pipe', 'inherit'] })
    this.ended = once(this.child, 'exit')
    createInterface({ input: this.child.stdout }).on('line', (line) => {
      const [what, id, value] = JSON.parse(line)
      this.#said.set(`${what} ${id}`, { value })
    })
  }

  tell(...words) {
    this.child.stdin.write(`${JSON.stringify(words)}\n`)
  }

  request(id, options = {}) {
    this.tell('request', id, name, options)
  }

  async heard(what, id) {
    return (await until(() => this.#said.get(`${what} ${id}`), `${what} ${id}`)).value
  }

  has(what, id) {
    return this.#said.has(`${what} ${id}`)
  }

  // How a request ended.
  async outcome(id) {
    return (await until(() => this.#said.get(`done ${id}`) ?? this.#said.get(`failed ${id}`), `the end of ${id}`)).value
  }

  stop() {
    this.child.stdin.end()
    this.child.kill()
    return this.ended
  }
}

async function withProcesses(work) {
  const others = [new Other(context.url), new Other(context.url)]
  try {
    await work(...others)
  } finally {
    await Promise.all(others.map((other) => other.stop()))
  }
}

test('processes exclude each other, and share', () =>
  withProcesses(async (one, two) => {
    one.request('a')
    assert.equal(await one.heard('called', 'a'), 'exclusive')
    two.request('b', { ifAvailable: true })
    assert.equal(await two.heard('called', 'b'), null)
    assert.equal(await two.heard('done', 'b'), null)
    two.request('c')
    two.tell('query', 'waits', name)
    const { held, pending } = await two.heard('snapshot', 'waits')
    one.tell('query', 'holds', name)
    const theirs = await one.heard('snapshot', 'holds')
    assert.deepEqual(held, theirs.held)
    assert.deepEqual([held.length, theirs.pending], [1, []])
    assert.deepEqual(pending.map(({ mode }) => mode), ['exclusive'])
    assert.notEqual(pending[0].clientId, held[0].clientId)
    one.tell('end', 'a')
    assert.equal(await one.heard('done', 'a'), 'result of a')
    assert.equal(await two.heard('called', 'c'), 'exclusive')
    two.tell('end', 'c')
    await two.heard('done', 'c')
    for (const other of [one, two]) other.request('r', { mode: 'shared' })
    assert.deepEqual([await one.heard('called', 'r'), await two.heard('called', 'r')], ['shared', 'shared'])
    // A process that ends gives its locks back.
    const waiting = hold(name)
    await Promise.all([one.stop(), two.stop()])
    await waiting.granted
    waiting.end()
    await waiting.done
  }))

test('a process is robbed by another one, however short the theft is', () =>
  withProcesses(async (one, two) => {
    for (let round = 0; round < 20; round += 1) {
      const id = `robbed ${round}`
      one.request(id)
      await one.heard('called', id)
      await locks.request(name, { steal: true }, () => {})
      const [errorName, isException, cause] = await one.heard('failed', id)
      assert.deepEqual([errorName, isException, cause], ['AbortError', true, 'lost'])
      one.tell('end', id)
    }
    const mode = 'shared'
    for (const other of [one, two]) other.request('reads', { mode })
    await Promise.all([one, two].map((other) => other.heard('called', 'reads')))
    assert.equal(await locks.request(name, { steal: true }, () => 'stolen'), 'stolen')
    for (const other of [one, two]) assert.equal((await other.heard('failed', 'reads'))[0], 'AbortError')
    // Requests of another process go on waiting after a theft.
    one.request('holds')
    await one.heard('called', 'holds')
    two.request('waits')
    two.tell('query', 'waits', name)
    assert.equal((await two.heard('snapshot', 'waits')).pending.length, 1)
    const thief = hold(name, { steal: true })
    assert.equal((await thief.granted).mode, 'exclusive')
    assert.equal((await one.heard('failed', 'holds'))[0], 'AbortError')
    thief.end('mine')
    assert.equal(await thief.done, 'mine')
    await two.heard('called', 'waits')
    two.tell('end', 'waits')
    assert.equal(await two.outcome('waits'), 'result of waits')
  }))

test('no waiter of another process comes between a theft and its victim', () =>
  withProcesses(async (...others) => {
    let holder = hold(name)
    await holder.granted
    const waiters = others.flatMap((other) => ['1', '2', '3'].map((id) => ({ other, id })))
    for (const { other, id } of waiters) other.request(id)
    const snapshots = async (when) => {
      for (const other of others) other.tell('query', when, name)
      return Promise.all(others.map((other) => other.heard('snapshot', when)))
    }
    const waiting = async (when) => assert.deepEqual((await snapshots(when)).map(({ pending }) => pending.length), [3, 3])
    await waiting('before')
    for (let round = 0; round < 100; round += 1) {
      const victim = holder
      holder = hold(name, { steal: true })
      await holder.granted
      await assert.rejects(victim.done, stolen)
    }
    // A waiter that was granted the lock in between has said so before this answer.
    await waiting('after')
    for (const { other, id } of waiters) assert.equal(other.has('called', id), false, `the waiter ${id} came in between`)
    holder.end()
    await Promise.all(
      waiters.map(async ({ other, id }) => {
        await other.heard('called', id)
        other.tell('end', id)
        assert.equal(await other.outcome(id), `result of ${id}`)
      }),
    )
  }))

test('a stolen shared lock is told to each that reads', async () => {
  // Its renewal is 20 minutes away.
  const client = await Client.connect(context.url, { watchdogLease: '1h', direct: false })
  const others = locksOf(client)
  const deleted = `${name}:deleted`
  const readers = [name, deleted].map((each) => hold(each, { mode: 'shared' }, { manager: others }))
  await Promise.all(readers.map(({ granted }) => granted))
  await context.redis.send('DEL', `web-locks:${deleted}`)
  assert.equal(await locks.request(name, { steal: true }, ({ mode }) => mode), 'exclusive')
  const [robbed, bereft] = readers.map(({ done }) => done)
  await assert.rejects(robbed, stolen)
  await assert.rejects(bereft, LockLostError)
  // Others that read beside it are told as well, and those of the same client as the thief.
  const beside = [others, locks].map((manager) => hold(name, { mode: 'shared' }, { manager }))
  await Promise.all(beside.map(({ granted }) => granted))
  await locks.request(name, { steal: true }, () => {})
  for (const { done } of beside) await assert.rejects(done, stolen)
  await client.close()
})
