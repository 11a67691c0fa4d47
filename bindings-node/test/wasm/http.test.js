'use strict'
// Redis over HTTP: the WebAssembly part before a gateway that has the REST form of hosted services. Run with REDLATCH_WASM=1.

const assert = require('node:assert/strict')
const { readFileSync } = require('node:fs')
const { join } = require('node:path')
const { after, beforeEach } = require('node:test')
const vm = require('node:vm')
const esbuild = require('esbuild')
const { connectByHttp } = require('../../lib/wasm/http.js')
const { AuthError, Client, InvalidArgumentError, LockCancelledError, LockTimeoutError, UnavailableError, WouldDeadlockError } = require('../../index.js')
const { PACKAGE, aborted, freshName, run, shared, test, until } = require('../support/index.js')
const { Gateway, TOKEN } = require('../support/gateway.js')
const { Silent } = require('../support/server.js')

const context = shared({ http: true, client: false })
const QUICK = { recheck: 100 } // a waiter hears of no release: it looks so often
let gateway
let client

beforeEach(async () => {
  gateway = context.gateway
  gateway.fault = undefined
  client ??= await Client.connect(gateway.url, QUICK)
})
after(() => client?.close())

// A client of a gateway of the test's own.
async function own(t, options = QUICK) {
  const mine = await Gateway.start(context.server.port)
  const of = await Client.connect(mine.url, options)
  t.after(async () => {
    await of.close({ limit: 0 }).catch(() => {})
    await mine.stop()
  })
  return [mine, of]
}

const answers = (status, body, headers = {}) => (response) => response.writeHead(status, headers).end(body)
const has = (...words) => context.redis.send(...words)

// ---- the lock ----

test('a lock is in Redis until it is released', async () => {
  const name = freshName()
  const hold = await client.lock(name, { fencing: true }).acquire()
  assert.equal(await has('EXISTS', name), 1)
  assert.equal(hold.isHeld, true)
  assert.ok(hold.fencingToken > 0n)
  assert.equal((await client.lock(name).holders()).length, 1)
  assert.equal(await hold.release(), true)
  assert.equal(await has('EXISTS', name), 0)
})

test('the URL and the token come apart, as their variables have them', async () => {
  const other = await Client.connect(gateway.place, { password: TOKEN })
  await other.lock(freshName()).using((hold) => assert.equal(hold.isHeld, true))
  await other.close()
})

test('a hold is entered again', async () => {
  const name = freshName()
  const hold = await client.lock(name).acquire({ key: 7 })
  const inner = await client.lock(name).acquire({ key: 7 })
  assert.deepEqual(await has('HVALS', name), ['2'])
  await inner.release()
  assert.deepEqual(await has('HVALS', name), ['1'])
  await hold.extend(60_000)
  assert.ok((await has('PTTL', name)) > 30_000)
  await hold.release()
  assert.equal(await has('EXISTS', name), 0)
})

test('names and bytes beyond ASCII come through', async () => {
  const name = `${freshName()}:sperre „ü“ 🔒 \u0001"\\`
  await client.lock(name).using(async () => assert.equal(await has('EXISTS', name), 1))
  assert.equal(await has('EXISTS', name), 0)
})

test('an acquisition is one request, and a release, too', async (t) => {
  const [mine, of] = await own(t)
  await of.lock(freshName()).using(() => {}) // the server knows the scripts then
  const { length } = mine.asked
  const hold = await of.lock(freshName()).acquire()
  assert.equal(mine.asked.length, length + 1)
  await hold.release()
  assert.equal(mine.asked.length, length + 2)
})

test('a server that forgets the scripts gets them again', async () => {
  for (let round = 0; round < 2; round += 1) {
    await client.lock(freshName()).using(() => {})
    await has('SCRIPT', 'FLUSH')
  }
  assert.ok(gateway.asked.flat().some(([word]) => word === 'EVALSHA'))
  assert.equal(client.stats().connects, 1)
})

test('one request is under way at a time, with all that came meanwhile', async (t) => {
  const [mine, of] = await own(t)
  const { length } = mine.asked
  const prefix = freshName()
  const holds = await Promise.all(Array.from({ length: 200 }, (_, at) => of.lock(`${prefix}:${at}`).acquire()))
  await Promise.all(holds.map((hold) => hold.release()))
  assert.equal(mine.mostAsking, 1)
  assert.ok(mine.asked.length - length < 100, `${mine.asked.length - length} requests for 400 calls`)
  assert.deepEqual(await has('KEYS', `${prefix}*`), [])
})

// ---- several clients ----

test('waiters over HTTP and a native client share a lock', async (t) => {
  const [, other] = await own(t)
  const name = freshName()
  const gate = await client.lock(`${name}:gate`).acquire()
  const child = run(
    context.server.url,
    `(async () => {
      const client = await Client.connect()
      const name = ${JSON.stringify(name)}
      const hold = await client.lock(name).acquire()
      await client.lock(name + ':gate').using(() => {})
      await hold.release()
      await client.lock(name).using(() => {})
      await client.close()
      process.stdout.write(redlatch.Client.name)
    })()`,
    { env: { REDLATCH_WASM: '0' } },
  )
  await until(async () => (await has('EXISTS', name)) === 1)
  let inside = 0
  const enter = async (of) => {
    const hold = await of.lock(name).acquire({ wait: 120_000 })
    inside += 1
    assert.equal(inside, 1)
    await has('PING')
    inside -= 1
    await hold.release()
  }
  const waiting = [client, other, client].map(enter)
  await assert.rejects(client.lock(name).acquire({ wait: 0 }), LockTimeoutError)
  await gate.release()
  await Promise.all(waiting)
  const { code, stdout, stderr } = await child
  assert.deepEqual([code, stdout], [0, 'Client'], stderr)
})

test('a release over HTTP wakes a waiter that listens', async () => {
  const listener = await Client.connect(context.server.url, { recheck: 3_600_000, tracking: false })
  const name = freshName()
  const hold = await client.lock(name).acquire()
  const waiting = listener.lock(name).acquire()
  await until(async () => (await has('PUBSUB', 'CHANNELS', 'redisson_*')).length === 1)
  await hold.release()
  await (await waiting).release()
  await listener.close()
})

test('a waiter over HTTP gets a lock whose lease ends, and says once that it hears nothing', async (t) => {
  const mine = await Gateway.start(context.server.port)
  const of = new Client(mine.url, { recheck: 3_600_000 })
  t.after(async () => {
    await of.close()
    await mine.stop()
  })
  const told = []
  of.on('event', ({ kind, level, text }) => told.push([kind, level, text]))
  const holder = await Client.connect(context.server.url)
  const name = freshName()
  await holder.lock(name, { lease: 1000 }).acquire()
  for (let round = 0; round < 2; round += 1) await of.lock(name).using((hold) => assert.equal(hold.isHeld, true))
  await until(() => told.some(([kind]) => kind === 'unsubscribed'))
  const silence = told.filter(([kind]) => /subscri/.test(kind))
  assert.deepEqual(silence, [['unsubscribed', 'info', 'no wake-ups for now, waiters look by themselves: nothing is pushed over HTTP']])
  await holder.close()
})

test('a wait over HTTP is given up by its signal', async () => {
  const name = freshName()
  const hold = await client.lock(name).acquire()
  const abort = new AbortController()
  const waiting = client.lock(name).acquire({ signal: abort.signal })
  abort.abort()
  await assert.rejects(waiting, (error) => error === abort.signal.reason || error instanceof LockCancelledError)
  await hold.release()
})

// ---- other locks ----

test('semaphores, plain ones and latches', async () => {
  const semaphore = client.semaphore(freshName(), { limit: 2 })
  const two = [await semaphore.acquire(), await semaphore.acquire()]
  await assert.rejects(semaphore.acquire({ wait: 0 }), LockTimeoutError)
  const third = semaphore.acquire()
  await two[0].release()
  await (await third).release()
  await two[1].release()

  const plain = client.plainSemaphore(freshName())
  assert.equal(await plain.trySetPermits(1), true)
  const permit = await plain.acquire()
  const next = plain.acquire()
  await permit.release()
  await (await next).release()
  assert.equal(await plain.available(), 1)

  const latch = client.latch(freshName())
  await latch.trySetCount(1)
  const waiting = latch.wait()
  await latch.countDown()
  await waiting
})

test('read-write locks, fair ones and several as one', async () => {
  const { read, write } = client.rwLock(freshName())
  const readers = [await read.acquire({ key: 1 }), await read.acquire({ key: 2 })]
  await assert.rejects(write.acquire({ key: 1 }), WouldDeadlockError)
  const writing = write.acquire({ key: 3 })
  for (const reader of readers) await reader.release()
  await (await writing).release()

  const fair = client.lock(freshName(), { kind: 'fair' })
  const first = await fair.acquire()
  const order = []
  const queue = []
  for (const at of [1, 2, 3]) {
    queue.push(fair.using(() => order.push(at)))
    await until(async () => (await fair.waiters()).length === at)
  }
  await first.release()
  await Promise.all(queue)
  assert.deepEqual(order, [1, 2, 3])

  const names = [freshName(), freshName()]
  const both = await client.multiLock(names).acquire()
  assert.equal(await has('EXISTS', ...names), 2)
  await both.release()
  assert.equal(await has('EXISTS', ...names), 0)
})

// ---- what a hold is worth ----

test('the watchdog keeps a lock', async () => {
  const { renewed } = client.stats()
  const hold = await client.lock(freshName(), { watchdogLease: 1500 }).acquire()
  await until(() => client.stats().renewed >= renewed + 4) // two leases
  assert.equal(hold.isHeld, true)
  assert.equal(await has('EXISTS', hold.name), 1)
  await hold.release()
})

test('a lock that was deleted is told at its renewal', async () => {
  const hold = await client.lock(freshName(), { watchdogLease: 1500 }).acquire()
  const { signal } = hold
  await has('DEL', hold.name)
  const { reason } = await aborted(signal)
  assert.equal(reason, 'deleted')
  assert.equal(await hold.release(), false)
})

test('a gateway that goes away: the hold ends by its deadline, and the client comes back', async (t) => {
  const [mine, of] = await own(t)
  const hold = await of.lock(freshName(), { watchdogLease: 1500 }).acquire()
  const { signal } = hold
  await mine.stop()
  const { reason } = await aborted(signal)
  assert.equal(reason, 'unreachable')
  await assert.rejects(of.lock(freshName()).acquire({ wait: 0 }), (error) => {
    assert.ok(error instanceof UnavailableError, `${error}`)
    assert.match(error.message, new RegExp(`127.0.0.1:${mine.port}: connect ECONNREFUSED`))
    assert.equal(error.cause.code, 'ECONNREFUSED')
    return true
  })
  await mine.open()
  await (await of.lock(freshName()).acquire({ wait: 120_000 })).release()
})

test('a gateway that fails for a moment costs a lock nothing', async (t) => {
  const [mine, of] = await own(t)
  const hold = await of.lock(freshName(), { watchdogLease: 6000 }).acquire()
  const { renewed } = of.stats()
  let failures = 0
  mine.fault = (response) => (failures += 1) <= 2 && answers(503, '{"error":"ERR busy"}')(response)
  await until(() => of.stats().renewed > renewed)
  assert.ok(failures > 2)
  assert.equal(hold.isHeld, true)
  await hold.release()
})

// ---- what goes wrong ----

// The error of a client that cannot connect. It names the place, and no token. A busy machine may need long for the answer.
async function refused(kind, pattern, url = gateway.url, options = {}) {
  await assert.rejects(Client.connect(url, { connectTimeout: 300_000, ...options }), (error) => {
    assert.ok(error instanceof kind, `${error}`)
    assert.match(error.message, pattern)
    assert.match(error.message, new RegExp(`127.0.0.1:${gateway.port}`))
    assert.ok(![TOKEN, 'wrong', encodeURIComponent(TOKEN)].some((secret) => error.stack.includes(secret)), error.stack)
    return true
  })
}

test('a token that is wrong, is missing, or cannot be sent', async () => {
  await refused(AuthError, /the token is refused/, gateway.place, { password: 'wrong' })
  await refused(AuthError, /a token is asked for/, gateway.place)
  await refused(UnavailableError, /the token has characters that no header/, gateway.place, { password: 'wrong\nü' })
})

test('a token that is withdrawn is told to callers', async (t) => {
  const [mine, of] = await own(t)
  mine.fault = answers(401, '{"error":"WRONGPASS"}')
  await assert.rejects(of.lock(freshName()).acquire(), AuthError)
})

test('an error that repeats the token does not show it', async () => {
  for (const form of [TOKEN, encodeURIComponent(TOKEN)]) {
    gateway.fault = (response, commands) => answers(200, JSON.stringify(commands.map(() => ({ error: `WRONGPASS not ${form}` }))))(response)
    await refused(AuthError, /WRONGPASS not \*\*\*/)
  }
})

test('calls share a command again after a token was refused once', async (t) => {
  const [mine, of] = await own(t)
  mine.fault = answers(401, '{"error":"WRONGPASS"}')
  await assert.rejects(of.lock(freshName()).acquire({ wait: 500 }), AuthError)
  mine.fault = undefined
  await (await of.lock(freshName()).acquire()).release()
  const before = mine.asked.length
  const holds = await Promise.all(Array.from({ length: 16 }, () => of.lock(freshName()).acquire()))
  assert.ok(mine.asked.slice(before).flat().length < 8, `${mine.asked.slice(before).flat().length} commands`)
  await Promise.all(holds.map((hold) => hold.release()))
})

// Regression test: a call had the time of one on a socket, a tenth of its lease.
test('a gateway that takes longer than a tenth of the lease', async (t) => {
  const [mine, of] = await own(t)
  mine.delay = 1100
  const hold = await of.lock(freshName(), { watchdogLease: 12_000 }).acquire()
  await until(() => of.stats().renewed >= 1)
  assert.equal(hold.isHeld, true)
  assert.equal(await hold.release(), true)
})

const REDLATCH_ANSWERS = (results) => (response, commands) => answers(200, JSON.stringify(commands.map(() => results)))(response)
const WRONG = {
  'the status 500': [answers(500, `{"error":"ERR no\\r\\nluck with ${TOKEN}"}`), /it answers with the status 500: ERR no luck with \*\*\*; is Redis served over HTTP there/],
  'the token where its words are cut': [answers(403, `{"error":"${'x'.repeat(190)}${TOKEN}"}`), /: x{190}\*\*\*; is Redis/],
  'the status 429': [answers(429, 'slow down'), /it answers with the status 429;/],
  'a redirect': [answers(308, '', { location: 'http://127.0.0.1:1/' }), /it redirects to another place, which is not followed; write that place/],
  'no JSON': [answers(200, '[{"result":'), /the answer is not that of Redis over HTTP/],
  'another number of answers': [answers(200, '[]'), /the answer is not that of Redis over HTTP/],
  'other JSON': [answers(200, '{"result":"OK"}'), /the answer is not that of Redis over HTTP/],
  'answers without a result': [REDLATCH_ANSWERS({}), /the answer is not that of Redis over HTTP/],
  'an answer of a type that Redis does not have': [REDLATCH_ANSWERS({ result: 1.5 }), /it has a number that Redis does not have/],
  'strings that are not in base64': [REDLATCH_ANSWERS({ result: 'no base64!' }), /its strings are not in base64/],
  'a time that is none': [REDLATCH_ANSWERS({ result: 'MTIz' }), /it does not tell its time; is Redis served over HTTP there/],
  'an answer without end': [
    (response) => {
      response.writeHead(200)
      const more = () => {
        while (!response.destroyed && response.write(Buffer.alloc(1 << 20, ' ')));
      }
      response.on('drain', more)
      more()
    },
    /the answer has more than 16 MiB/,
  ],
  'a connection that breaks': [(response) => response.destroy(), /cannot reach 127/],
}
for (const [what, [fault, pattern]] of Object.entries(WRONG)) {
  test(`a gateway that answers with ${what} is unavailable`, async () => {
    gateway.fault = fault
    await refused(UnavailableError, pattern)
  })
}

test('a gateway that does not answer is given up in time', async (t) => {
  const silent = await Silent.start()
  t.after(() => silent.stop())
  await assert.rejects(Client.connect(`http://127.0.0.1:${silent.port}`, { connectTimeout: 300 }), (error) => {
    assert.ok(error instanceof UnavailableError)
    assert.match(error.message, /no answer from 127.0.0.1/)
    return true
  })
  await until(() => silent.sockets.size === 0)
})

test('a call without an answer is made again, and no lock is left behind', async (t) => {
  const [mine, of] = await own(t)
  const name = freshName()
  let lost = 0
  // The server does it, and the answer is lost.
  mine.fault = (response, commands) => {
    if (lost > 0 || !commands.flat().includes(name)) return false
    lost += 1
    response.end = () => response.destroy()
    return false
  }
  const hold = await of.lock(name).acquire()
  assert.equal(lost, 1)
  assert.deepEqual(await has('HVALS', name), ['1'])
  await hold.release()
  assert.equal(await has('EXISTS', name), 0)
})

test('what HTTP does not have is refused', async () => {
  const refusals = [
    [{ protocol: 'resp3' }, /protocol is resp3, which HTTP does not have/],
    [{ connect: () => {} }, /connect is given, and the URL is of HTTP/],
    [{ username: 'me' }, /no user name/],
  ]
  for (const [options, pattern] of refusals) {
    assert.throws(() => new Client(gateway.place, options), (error) => error instanceof InvalidArgumentError && pattern.test(error.message), `${pattern}`)
  }
  assert.throws(() => new Client('https://h', { tlsCa: '-----BEGIN CERTIFICATE-----' }), /tlsCa is given, and the URL is of HTTP/)
  assert.throws(() => new Client('https://h/1'), /no database/)
  assert.throws(() => client.lock(freshName(), { replicas: 1 }), /replicas is given, and HTTP tells nothing of them/)
  const other = new Client(gateway.place, { replicas: 1 })
  assert.throws(() => other.lock(freshName()), /replicas is given/)
  assert.throws(() => client.semaphore(freshName(), { limit: 1, replicas: 2 }), /replicas is given/)
})

test('the native part says which part speaks HTTP', async () => {
  const { stdout, code } = await run('https://:secret@h', "try { new Client() } catch (error) { process.stdout.write(error.name + ': ' + error.message) }", {
    env: { REDLATCH_WASM: '0' },
  })
  assert.equal(code, 0)
  assert.match(stdout, /^InvalidArgumentError: the URL "https:\/\/\*\*\*@h" is one of Redis over HTTP, .*\(REDLATCH_WASM=1\); write redis:\/\//)
})

// ---- edge functions ----

// As the runtime of Vercel has it: a bundler brings the module, there is no eval() and nothing of Node.js.
test('the package in an edge function needs fetch() alone', async () => {
  const asModule = {
    name: 'wasm',
    setup(build) {
      build.onResolve({ filter: /\.wasm\?module$/ }, ({ path }) => ({ path, namespace: 'wasm' }))
      build.onLoad({ filter: /./, namespace: 'wasm' }, () => ({ contents: 'export default globalThis.compiled' }))
    },
  }
  const program = "import { Client } from 'redlatch'; globalThis.Client = Client"
  const { outputFiles } = await esbuild.build({
    stdin: { contents: program, resolveDir: PACKAGE },
    bundle: true,
    write: false,
    format: 'iife',
    platform: 'neutral',
    conditions: ['edge-light'],
    plugins: [asModule],
  })
  const names = ['AbortController', 'TextDecoder', 'TextEncoder', 'URL', 'atob', 'clearTimeout', 'crypto', 'fetch', 'performance', 'queueMicrotask', 'setTimeout']
  const web = Object.fromEntries(names.map((name) => [name, globalThis[name]]))
  const compiled = new WebAssembly.Module(readFileSync(join(PACKAGE, 'redlatch.wasm')))
  const place = vm.createContext({ ...web, compiled }, { codeGeneration: { strings: false, wasm: false } })
  vm.runInContext(outputFiles[0].text, place)
  const edge = await place.Client.connect(gateway.url, QUICK)
  const name = freshName()
  const hold = await edge.lock(name).acquire()
  await assert.rejects(client.lock(name).acquire({ wait: 0 }), LockTimeoutError)
  const waiting = client.lock(name).acquire()
  await hold.release()
  await (await waiting).release()
  await edge.semaphore(freshName(), { limit: 200 }).using({ permits: 200 }, () => {})
  assert.throws(() => new place.Client(context.server.url), /no sockets here.*https:/)
  await edge.close()
})

// ---- bytes ----

test('bytes that JSON does not carry are refused, and the commands beside them are not', async () => {
  const heard = []
  const connection = await new Promise((resolve) => {
    const events = {
      opened: () => resolve(made),
      received: (bytes) => heard.push(Buffer.from(bytes)),
      closed: (text) => heard.push(text),
    }
    const made = connectByHttp({ tls: false, host: '127.0.0.1', port: gateway.port }, events, queueMicrotask)
  })
  const command = (...words) => [`*${words.length}\r\n`, ...words.flatMap((word) => [`$${word.length}\r\n`, word, '\r\n'])]
  const bytes = Buffer.from([0, 10, 13, 195, 188, 34])
  const key = Buffer.from(freshName())
  const parts = [
    ...command('AUTH', TOKEN),
    ...command('SET', key, bytes),
    ...command('SET', key, Buffer.from([255])),
    ...command('GET', key),
    ...command('NO\r\nSUCH'),
    ...command('LRANGE', `${key}:none`, '0', '-1'),
  ]
  connection.write(Buffer.concat(parts.map((part) => Buffer.from(part))))
  await until(() => heard.length > 0)
  const text = Buffer.concat(heard).toString('latin1')
  assert.match(text, /^\+OK\r\n\+OK\r\n-ERR a command has bytes that are no UTF-8[^\r]*\r\n\$6\r\n\0\n\r\xc3\xbc"\r\n-ERR unknown command[^\r\n]*\r\n\*0\r\n$/)
  connection.destroy()
})
