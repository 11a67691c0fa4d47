'use strict'
// The WebAssembly part alone: the module itself, its end by a trap, its memory, hostile servers, and the package where there is
// no binary. Run with REDLATCH_WASM=1.

const assert = require('node:assert/strict')
const { AsyncLocalStorage } = require('node:async_hooks')
const { execFile, spawn } = require('node:child_process')
const { once } = require('node:events')
const { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } = require('node:fs')
const net = require('node:net')
const { Duplex } = require('node:stream')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const tls = require('node:tls')
const { promisify } = require('node:util')
const { border } = require('../../lib/border.js')
const { clockOf } = require('../../lib/wasm/clock.js')
const { Client, InternalError, LockError, NotReplicatedError, UnavailableError } = require('../../index.js')
const { PACKAGE, aborted, collector, freshName, runNode, shared, test, until } = require('../support/index.js')
const { serve } = require('../support/registry.js')

const execute = promisify(execFile)
const context = shared()
const module_ = readFileSync(join(PACKAGE, 'redlatch.wasm'))

// A module with one function that traps, `trap`.
// prettier-ignore
const TRAP = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 7, 8, 1, 4, 116, 114, 97, 112, 0, 0, 10, 5, 1, 3, 0, 0, 11,
])
const trap = () => new WebAssembly.Instance(new WebAssembly.Module(TRAP)).exports.trap

test('the module imports nothing', () => {
  assert.deepEqual(WebAssembly.Module.imports(new WebAssembly.Module(module_)), [])
})

test('the clock counts each suspend, whatever is done to the clock of the day', () => {
  const time = { day: 1_700_000_000_000, running: 5000 }
  const now = clockOf(() => time.day, () => time.running)
  let before = now()
  // Milliseconds by the clock since the last look.
  const after = ({ day, running }) => {
    time.day += day
    time.running += running
    const passed = (now() - before) / 1000
    before = now()
    return passed
  }
  const second = { day: 1000, running: 1000 }
  assert.equal(after(second), 1000)
  assert.equal(after({ day: 300_000, running: 0 }), 300_000) // suspended
  assert.equal(after({ day: -600_000, running: 0 }), 0) // set back
  assert.equal(after(second), 1000)
  assert.equal(after({ day: 300_010, running: 10 }), 300_010) // suspended again
  assert.equal(after({ day: 1005, running: 1000 }), 1000) // corrected
  assert.equal(after(second), 1000)
})

test('the clock stands still at a look at which the clock of the process goes back', () => {
  const time = { day: 1_700_000_000_000, running: 5000 }
  const now = clockOf(() => time.day, () => time.running)
  const pass = (ms) => {
    time.day += ms
    time.running += ms
    return now()
  }
  const first = pass(1000)
  // Outside of a request, where the garbage collector has a client dropped.
  const running = time.running
  time.running = 0
  assert.equal(now(), first)
  assert.equal(pass(0), first)
  time.running = running
  assert.equal(pass(1000), first + 1_000_000)
})

test('the clock takes no wait for a core for a suspend', () => {
  const time = { day: 0, running: 0 }
  let waits = []
  const now = clockOf(
    () => {
      const passed = waits.shift() ?? 0
      time.running += passed
      time.day += passed
      return time.day
    },
    () => time.running,
  )
  for (let round = 1; round <= 10; round += 1) {
    waits = [200]
    assert.equal(now(), round * 200_000 + 1)
  }
})

for (const blocked of [1200, 2500]) {
  test(`an answer that came while the event loop was blocked for ${blocked} ms counts`, async () => {
    const client = await Client.connect(context.url)
    // The server knows the scripts then: an acquisition is one question.
    await client.lock(freshName()).using(() => {})
    const { connects } = client.stats()
    const waiting = client.lock(freshName()).acquire({ wait: 0 })
    await Promise.resolve() // now it is written
    await Promise.resolve()
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, blocked)
    const hold = await waiting
    assert.equal(hold.isHeld, true)
    await hold.release()
    assert.equal(client.stats().connects, connects)
    await client.close()
  })
}

test('a call right after the event loop was blocked does not give up what has its answer', async () => {
  const client = await Client.connect(context.url)
  await client.lock(freshName()).using(() => {})
  const { connects } = client.stats()
  const waiting = client.lock(freshName()).tryAcquire()
  await Promise.resolve() // now it is written
  await Promise.resolve()
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2500)
  const next = client.lock(freshName()).tryAcquire()
  for (const hold of await Promise.all([waiting, next])) await hold.release()
  assert.equal(client.stats().connects, connects)
  await client.close()
})

test('the end of the program releases more locks than are asked for at once', async () => {
  const prefix = freshName()
  const program = `
    const { Client } = require(${JSON.stringify(PACKAGE)})
    Client.connect().then(async (client) => {
      globalThis.holds = await Promise.all(Array.from({ length: 3000 }, (_, at) => client.lock('${prefix}:' + at).acquire()))
      console.log(holds.length)
    })`
  const { code, stdout, stderr } = await runNode(['-e', program], { REDLATCH_URL: context.url })
  assert.deepEqual([code, stdout], [0, '3000\n'], stderr)
  await until(async () => (await context.redis.send('KEYS', `${prefix}:*`)).length === 0)
})

test('a hold is renewed after the event loop was blocked, where nothing else wakes it', async () => {
  const name = freshName()
  const program = `
    const { Client } = require(${JSON.stringify(PACKAGE)})
    require('node:net').createServer().listen(0, '127.0.0.1')
    Client.connect().then(async (client) => {
      globalThis.hold = await client.lock('${name}', { watchdogLease: 3000 }).acquire()
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1600)
    })`
  const env = { ...process.env, REDLATCH_URL: context.url }
  const child = spawn(process.execPath, ['-e', program], { env, stdio: ['ignore', 'inherit', 'inherit'] })
  const ended = once(child, 'exit')
  try {
    const remaining = () => context.redis.send('PTTL', name)
    await until(async () => (await remaining()) > 2000)
    await until(async () => (await remaining()) < 1900)
    await until(async () => (await remaining()) > 2000)
  } finally {
    child.kill('SIGKILL')
    await ended
  }
})

test('memory does not grow with the number of names', async () => {
  const client = await Client.connect(context.url)
  const name = freshName()
  const use = async (number) => {
    const hold = await client.lock(`${name}:${number}`).acquire()
    await hold.release()
  }
  let made = 0
  const some = async (most) => {
    for (; made < most; made += 500) await Promise.all(Array.from({ length: 500 }, (_, at) => use(made + at)))
    return border.instance.memory
  }
  const before = await some(10_000)
  // SCALE=full asks for a million.
  const after = await some(process.env.SCALE === 'full' ? 1_000_000 : 60_000)
  // A name that stays takes at least 32 bytes, 1.6 MB here. Buffers follow the most that is under way at once, which differs.
  assert.ok(after - before <= 1024 * 1024, `${before} bytes, then ${after}`)
  await client.close()
})

test('what no server of Redis sends is an error, and no trap', async () => {
  const { instance } = border
  for (const reply of ['HTTP/1.1 400 Bad Request\r\n\r\n', '*-7\r\n', `${'*1\r\n'.repeat(100_000)}`, '$3\r\nabcde\r\n', '\0'.repeat(9)]) {
    const server = net.createServer((socket) => socket.on('error', () => {}).write(reply))
    await once(server.listen(0, '127.0.0.1'), 'listening')
    const client = new Client(`redis://127.0.0.1:${server.address().port}`, { connectTimeout: 500 })
    await assert.rejects(client.lock('n').acquire({ wait: 0 }), UnavailableError, JSON.stringify(reply.slice(0, 20)))
    await client.close(0)
    server.close()
  }
  assert.equal(border.instance, instance)
})

test('random bytes in the middle of a connection are no trap', async () => {
  const { instance } = border
  let seed = 7
  const byte = () => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) >>> 24
  const server = net.createServer((outer) => {
    const inner = net.connect(context.server.port, '127.0.0.1')
    for (const socket of [outer, inner]) socket.on('error', () => [outer, inner].forEach((each) => each.destroy()))
    outer.pipe(inner)
    inner.on('data', (data) => {
      if (byte() < 40) data[byte() % data.length] = byte()
      if (!outer.destroyed) outer.write(data)
    })
    inner.on('close', () => outer.destroy())
    outer.on('close', () => inner.destroy())
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const client = new Client(`redis://127.0.0.1:${server.address().port}`, { outage: 200, connectTimeout: 300 })
  let ended = 0
  const use = async (number) => {
    try {
      await client.lock(`${freshName()}:${number}`).using({ wait: 100, lease: 300 }, () => {})
    } catch (error) {
      assert.ok(error instanceof LockError && !(error instanceof InternalError), `${error.stack}`)
    }
    ended += 1
  }
  for (let round = 0; round < 40; round += 1) await Promise.all(Array.from({ length: 8 }, (_, at) => use(at)))
  assert.equal(ended, 320)
  await client.close(0)
  server.close()
  assert.equal(border.instance, instance)
})

test('with RESP2 a waiter is woken by the release', async () => {
  const [client, other] = await Promise.all([1, 2].map(() => Client.connect(context.url, { protocol: 'resp2', recheck: 60_000 })))
  const name = freshName()
  const hold = await client.lock(name).acquire()
  const began = performance.now()
  const waiting = other.lock(name).acquire()
  await until(async () => (await context.redis.send('PUBSUB', 'NUMSUB', `redisson_lock__channel:{${name}}`))[1] === 1)
  await hold.release()
  assert.equal((await waiting).isHeld, true)
  assert.ok(performance.now() - began < 20_000)
  await Promise.all([client.close(), other.close()])
})

test('the TLS settings of a client are forgotten with it', async () => {
  const made = []
  const { createSecureContext } = tls
  tls.createSecureContext = (...given) => {
    const context = createSecureContext(...given)
    made.push(new WeakRef(context))
    return context
  }
  try {
    for (let count = 0; count < 3; count += 1) new Client('rediss://127.0.0.1:1')
  } finally {
    tls.createSecureContext = createSecureContext
  }
  assert.ok(made.length >= 3)
  const collect = collector()
  await until(() => {
    collect()
    return made.every((context) => context.deref() === undefined)
  })
})

test('too few replicas are told', async () => {
  const client = await Client.connect(context.url)
  await assert.rejects(client.lock(freshName(), { replicas: 1 }).acquire({ wait: 0 }), NotReplicatedError)
  await client.close()
})

// A stream of the program's own, which leads to the server of the tests.
async function toServer() {
  const socket = net.connect(context.server.port, '127.0.0.1')
  await once(socket, 'connect')
  return Duplex.toWeb(socket)
}

test('a stream of the program takes the place of a socket', async () => {
  const asked = []
  const connect = ({ signal, ...place }) => (asked.push([place, signal.aborted]), toServer())
  const client = await Client.connect('rediss://db.internal:7000', { connect })
  await client.lock(freshName()).using((hold) => assert.equal(hold.isHeld, true))
  await client.close()
  assert.deepEqual(asked, [[{ host: 'db.internal', port: 7000, tls: true }, false]])
})

test('a stream that breaks is replaced, and its signal is aborted', async () => {
  const opened = []
  const connect = async ({ signal }) => {
    const stream = await toServer()
    opened.push({ signal, stream })
    return stream
  }
  const client = await Client.connect('redis://h', { connect })
  await context.redis.send('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
  await client.lock(freshName()).using((hold) => assert.equal(hold.isHeld, true))
  assert.ok(opened.length >= 2 && opened[0].signal.aborted)
  await client.close()
  assert.ok(opened.at(-1).signal.aborted)
})

test('calls that a lost connection did not take are made on the next one', async () => {
  let cut = false
  const connect = async () => {
    const { readable, writable } = await toServer()
    let answers
    const incoming = new TransformStream({ start: (controller) => (answers = controller) })
    // The first calls do not reach the server, and the connection ends.
    const outgoing = new TransformStream({
      transform: (chunk, to) => {
        if (cut || !Buffer.from(chunk).includes('EVAL')) return to.enqueue(chunk)
        cut = true
        answers.error(new Error('cut'))
      },
    })
    outgoing.readable.pipeTo(writable).catch(() => {})
    return { readable: readable.pipeThrough(incoming), writable: outgoing.writable }
  }
  const client = await Client.connect('redis://h', { connect })
  // More than may be under way at once.
  const asked = Array.from({ length: 1000 }, () => client.lock(freshName()).isLocked())
  assert.deepEqual(new Set(await Promise.all(asked)), new Set([false]))
  assert.ok(cut)
  assert.equal(client.stats().connects, 2)
  await client.close()
})

test('connect runs in no context of the program', async () => {
  const requests = new AsyncLocalStorage()
  let seen = 'not called'
  const connect = () => {
    seen = requests.getStore()
    return toServer()
  }
  const client = await requests.run('a request', () => Client.connect('redis://h', { connect }))
  assert.equal(seen, undefined)
  await client.close()
})

test('a stream that brings views of bytes serves, and one that brings text is told', async () => {
  const through = (change) => async () => {
    const { readable, writable } = await toServer()
    return { readable: readable.pipeThrough(new TransformStream({ transform: (chunk, to) => to.enqueue(change(chunk)) })), writable }
  }
  const copies = [(chunk) => chunk.buffer.slice(chunk.byteOffset, chunk.byteOffset + chunk.length), (chunk) => new DataView(chunk.buffer, chunk.byteOffset, chunk.length)]
  for (const change of copies) {
    const client = await Client.connect('redis://h', { connect: through(change) })
    await client.close()
  }
  await assert.rejects(Client.connect('redis://h', { connect: through(String) }), { name: 'UnavailableError', message: /other than bytes/ })
})

test('a connect of the wrong form is refused with the remedy', async () => {
  const named = (name, message) => ({ name, message })
  assert.throws(() => new Client('redis://h', { connect: 5 }), named('InvalidArgumentError', /connect is 5; give it a function/))
  const ca = join(PACKAGE, '../core/tests/tls/ca.pem')
  assert.throws(() => new Client('rediss://h', { connect: toServer, tlsCa: ca }), named('InvalidArgumentError', /tlsCa is given, and connect is, too/))
  for (const connect of [() => ({}), async () => null]) {
    await assert.rejects(Client.connect('redis://h', { connect }), named('UnavailableError', /connect gave no stream/))
  }
  const refuse = () => {
    throw new Error('no way there')
  }
  await assert.rejects(Client.connect('redis://h', { connect: refuse }), named('UnavailableError', /no way there/))
  // One that never opens is given up with its attempt.
  let given
  const silent = ({ signal }) => ((given = signal), new Promise(() => {}))
  await assert.rejects(Client.connect('redis://h', { connect: silent, connectTimeout: 100 }), named('UnavailableError', /no answer from h:6379/))
  assert.equal(given.aborted, true)
})

test('a file for browsers is replaced where Node.js takes it', async () => {
  const program = `require(${JSON.stringify(PACKAGE)}).Client.connect().then((client) => client.close()).then(() => console.log('closed'))`
  const { stdout, stderr } = await runNode(['--conditions=browser', '-e', program], { REDLATCH_URL: context.url })
  assert.equal(stdout, 'closed\n', stderr)
})

test('where npm installs no binary the program of the README runs on WebAssembly', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'redlatch-wasm-'))
  let registry
  try {
    const packages = join(folder, 'packages')
    mkdirSync(packages)
    await execute(process.execPath, [join(PACKAGE, 'scripts', 'pack.js'), packages])
    registry = await serve(packages)
    writeFileSync(join(folder, 'package.json'), '{ "private": true }')
    const options = ['--os=freebsd', `--registry=${registry.url}`, `--cache=${join(folder, 'cache')}`, '--no-audit', '--no-fund']
    // The npm that runs the tests tells them things that are not for this one.
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name)))
    await execute('npm', ['install', 'redlatch', ...options], { cwd: folder, env })

    const [, program] = /^```js\n(.*?)^```/ms.exec(readFileSync(join(PACKAGE, 'README.md'), 'utf8'))
    const before = `
      Object.defineProperty(process, 'platform', { value: 'freebsd' })
      process.on('warning', ({ code, message }) => console.log(code, / for freebsd-.* here: .*: a blocked event loop /.test(message)))`
    writeFileSync(join(folder, 'freebsd.cjs'), before)
    writeFileSync(join(folder, 'program.mjs'), program)
    const words = ['--no-warnings', '--require', join(folder, 'freebsd.cjs'), join(folder, 'program.mjs')]
    const { code, stdout, stderr } = await runNode(words, { REDLATCH_URL: context.url, REDLATCH_WASM: '' })
    assert.equal(code, 0, stderr)
    assert.match(stdout, /^REDLATCH_WASM true\n42 mine for another \d/)
  } finally {
    registry?.stop()
    rmSync(folder, { recursive: true, force: true })
  }
})

// The last one: it ends the clients of all tests.
test('after a trap its calls fail, its holds are lost, and a new client works', async () => {
  const client = await Client.connect(context.url)
  const told = once(client, 'lost')
  const name = freshName()
  const hold = await client.lock(name).acquire({ lease: 2000 })
  const { signal } = hold
  const waiting = client.lock(name).acquire()
  const before = border.instance
  before.replace('redlatch_is_held', trap())
  assert.equal(hold.isHeld, false)
  const failed = (error) => error instanceof InternalError && error.message.includes('unreachable')
  await assert.rejects(waiting, failed)
  const reason = await aborted(signal)
  assert.deepEqual([reason.kind, reason.reason, (await told)[0]], ['lost', 'unreachable', reason])
  assert.throws(() => hold.check(), reason)
  assert.deepEqual([hold.isHeld, hold.remaining], [false, 0])
  await assert.rejects(client.lock(name).acquire(), failed)
  await assert.rejects(client.close(), failed)

  const next = await Client.connect(context.url)
  assert.notEqual(border.instance, before)
  // Nobody releases the lock that the trap has left in Redis: it ends with its lease.
  await next.lock(name).using((hold) => assert.equal(hold.isHeld, true))
  await next.close()
  context.client = undefined
})

test('the WebAssembly part has no server in memory, and says so', async () => {
  const code = `const { MemoryServer } = require(${JSON.stringify(join(PACKAGE, 'testing.js'))}); new MemoryServer()`
  const { code: ended, stderr } = await runNode(['-e', code], { REDLATCH_WASM: '1' })
  assert.notEqual(ended, 0)
  assert.match(stderr, /redlatch\/testing needs the native part/)
})
