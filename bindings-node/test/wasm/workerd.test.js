'use strict'
// The package in Cloudflare's runtime: bundled as for a Worker, in `workerd` of PATH, on a real server.

const assert = require('node:assert/strict')
const { spawn } = require('node:child_process')
const { once } = require('node:events')
const { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } = require('node:fs')
const net = require('node:net')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { createInterface } = require('node:readline')
const { after } = require('node:test')
const tls = require('node:tls')
const esbuild = require('esbuild')
const redlatch = require('../../index.js')
const { isListenedTo } = require('../../lib/channels.js')
const { Gateway } = require('../support/gateway.js')
const { PACKAGE, freshName, shared, test, until } = require('../support/index.js')

const context = shared()
const EXAMPLE = join(PACKAGE, '../examples/worker')
const folder = mkdtempSync(join(tmpdir(), 'redlatch-workerd-'))
const certificate = (name) => readFileSync(join(PACKAGE, '../core/tests/tls', name))
const ended = []

// The command of docs/wasm.md for a workerd without wrangler.
const BANNER = "import { createRequire } from 'node:module'; const require = createRequire('/')"
const bundle = (program) =>
  esbuild.build({
    ...program,
    bundle: true,
    format: 'esm',
    conditions: ['workerd'],
    external: ['node:*', 'cloudflare:*'],
    loader: { '.wasm': 'copy' },
    assetNames: '[name]',
    banner: { js: BANNER },
    outdir: folder,
    logLevel: 'silent',
  })

// Starts workerd with a configuration in the folder. Resolves with its URL.
async function serve(file) {
  const args = ['serve', join(folder, file), '--socket-addr=http=127.0.0.1:0', '--control-fd=3']
  const env = { ...process.env, REDLATCH_URL: context.url }
  const child = spawn('workerd', args, { env, stdio: ['ignore', 'inherit', 'inherit', 'pipe'] })
  const end = once(child, 'exit')
  ended.push(async () => {
    child.kill('SIGKILL')
    await end
  })
  const [line] = await Promise.race([
    once(createInterface({ input: child.stdio[3] }), 'line'),
    end.then(([code]) => assert.fail(`workerd has ended with ${code}`)),
  ])
  return `http://127.0.0.1:${JSON.parse(line).port}`
}

// A terminator of TLS before the server. Resolves with its port.
async function terminator(name) {
  const server = tls.createServer({ cert: certificate(`${name}.pem`), key: certificate(`${name}.key`) }, (outer) => {
    const inner = net.connect(context.server.port, '127.0.0.1')
    for (const socket of [outer, inner]) socket.on('error', () => [outer, inner].forEach((each) => each.destroy()))
    outer.pipe(inner).pipe(outer)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  ended.push(() => server.close())
  return server.address().port
}

// The configuration of the example with the Worker of these tests, its object, and the authority of the tests.
function configuration() {
  const example = readFileSync(join(EXAMPLE, 'workerd.capnp'), 'utf8')
  const trusted = `trustedCertificates = [${JSON.stringify(`${certificate('ca.pem')}`)}]`
  const object = '  durableObjectNamespaces = [(className = "Keeper", uniqueKey = "keeper")],\n  durableObjectStorage = (inMemory = void),\n'
  return example
    .replace('trustBrowserCas = true', trusted)
    .replace('services = [', 'v8Flags = ["--expose-gc"],\n  services = [')
    .replace('bindings = [', `bindings = [(name = "KEEPER", durableObjectNamespace = "Keeper"), `)
    .replace(/\);\s*$/, `${object});\n`)
}

// The URL of the Worker of these tests, which begins with the first of them: the server is there by then.
let url
async function begun() {
  await bundle({ entryPoints: [join(__dirname, 'worker.mjs')] })
  writeFileSync(join(folder, 'test.capnp'), configuration())
  return serve('test.capnp')
}
after(async () => {
  for (const end of ended) await end()
  rmSync(folder, { recursive: true, force: true })
})

async function ask(call, words = {}) {
  url ??= begun()
  // A request that hangs fails by the name of its test.
  const signal = AbortSignal.timeout(60_000)
  const answer = await fetch(`${await url}/${call}?${new URLSearchParams(words)}`, { signal })
  const { value, error } = await answer.json()
  if (error !== undefined) throw Object.assign(new Error(error.message), error)
  return value
}

const isThere = (name) => until(async () => (await context.redis.send('EXISTS', name)) === 1)
const isListenedFor = async (channel) => (await context.redis.send('PUBSUB', 'NUMSUB', channel))[1] > 0
const isGone = async (name) => assert.equal(await context.redis.send('EXISTS', name), 0)

test('it exports the same names as in Node.js', async () => {
  const names = new Set(await ask('exports'))
  assert.deepEqual(Object.keys(redlatch).filter((name) => !names.has(name)), [])
})

test('a request acquires and releases', async () => {
  const name = freshName()
  const { isHeld, remaining } = await ask('acquire', { name })
  assert.equal(isHeld, true)
  assert.ok(remaining > 0, `${remaining}`)
  await isGone(name)
})

test('a request that waits for another one is woken by its release', async () => {
  const [name, latch] = [freshName(), freshName()]
  await context.client.latch(latch).trySetCount(1)
  const holding = ask('hold', { name, latch })
  await isThere(name)
  const waiting = ask('acquire', { name })
  await until(() => isListenedFor(`redisson_lock__channel:{${name}}`))
  const began = performance.now()
  await context.client.latch(latch).countDown()
  await holding
  assert.equal((await waiting).isHeld, true)
  assert.ok(performance.now() - began < 20_000)
  await isGone(name)
})

test('a server is reached over HTTP', async () => {
  const gateway = await Gateway.start(context.server.port)
  ended.push(() => gateway.stop())
  assert.equal(await ask('connect', { url: gateway.url }), true)
  await isGone('connected')
  await assert.rejects(ask('connect', { url: gateway.place }), { name: 'AuthError' })
  gateway.fault = (response) => response.writeHead(302, { location: context.url }).end()
  await assert.rejects(ask('connect', { url: gateway.url }), { name: 'UnavailableError', message: /it redirects to another place/ })
})

test('a loss is told', async () => {
  const name = freshName()
  const losing = ask('lose', { name })
  await isThere(name)
  await context.redis.send('DEL', name)
  const { losses, isHeld, released } = await losing
  assert.deepEqual(losses.map(({ name, reason }) => [name, reason]), Array(2).fill(['LockLostError', 'deleted']))
  assert.deepEqual([isHeld, released], [false, false])
})

test('a server that is not there is unavailable, and the cause says why', async () => {
  const nowhere = 'redis://127.0.0.1:1' // below the ports that systems give to programs
  for (const [url, code] of [['redis://no-such-host.invalid', 'ENOTFOUND'], [nowhere, 'ECONNREFUSED']]) {
    await assert.rejects(ask('connect', { url }), { name: 'UnavailableError', kind: 'unavailable', code, isLockError: true })
  }
  await assert.rejects(ask('connect', { url: 'unix:///none.sock' }), { name: 'UnavailableError', message: /not supported/ })
})

test('a server that does not answer is unavailable after the time-out', async () => {
  const silent = net.createServer((socket) => socket.on('error', () => {}).resume())
  await once(silent.listen(0, '127.0.0.1'), 'listening')
  ended.push(() => silent.close())
  const { port } = silent.address()
  for (const scheme of ['redis', 'rediss']) {
    const connecting = ask('connect', { url: `${scheme}://127.0.0.1:${port}`, connectTimeout: '300ms' })
    await assert.rejects(connecting, { name: 'UnavailableError', message: /within 300 ?ms/ })
  }
})

test('TLS is that of the platform', async () => {
  assert.equal(await ask('connect', { url: `rediss://localhost:${await terminator('server')}` }), true)
  const wrong = `rediss://localhost:${await terminator('wronghost')}`
  await assert.rejects(ask('connect', { url: wrong }), { name: 'UnavailableError' })
  await assert.rejects(ask('connect', { url: wrong, tlsCa: 'x' }), { name: 'InvalidArgumentError', message: /^tlsCa is given; leave it out: / })
})

test('a client outside of requests is refused with the remedy', async () => {
  const { error } = await ask('outside')
  assert.equal(error.name, 'InvalidArgumentError')
  assert.match(error.message, /outside of a request.*in each request: await using client/)
})

test('the client of another request is refused with the remedy, and disturbs no other', async () => {
  const name = freshName()
  await ask('leave', { name })
  const { refusals, isHeld } = await ask('useLeft', { name: freshName() })
  assert.equal(refusals.length, 4)
  for (const { name, message } of refusals) {
    assert.equal(name, 'InvalidArgumentError')
    assert.match(message, /another request made this client.*in each request: await using client/)
  }
  assert.equal(isHeld, true)
  assert.equal((await ask('acquire', { name: freshName() })).isHeld, true)
  // Nobody releases it but its lease.
  await isThere(name)
})

test('what another request was refused to release is released by its own', async () => {
  const [name, seats, latch] = [freshName(), freshName(), freshName()]
  await context.client.latch(latch).trySetCount(1)
  const showing = ask('show', { name, seats, latch })
  await until(() => isListenedFor(`redisson_countdownlatch__channel__{${latch}}`))
  const refusals = await ask('releaseShown')
  assert.deepEqual(refusals.map((error) => error?.name), Array(2).fill('InvalidArgumentError'))
  await context.client.latch(latch).countDown()
  assert.deepEqual(await showing, { released: true, available: 1 })
  await isGone(name)
})

test('a Durable Object keeps its client and its hold from event to event', async () => {
  const name = freshName()
  assert.deepEqual([await ask('keep', { name }), await ask('keep', { name })], [1, 1])
  const losing = ask('lost')
  await context.redis.send('DEL', name)
  assert.equal(await losing, 'deleted')
  await ask('end')
})

test('a hold that is forgotten in a Durable Object ends with its lease, although its client goes on', async () => {
  const name = freshName()
  await ask('acquire', { name: freshName() }) // a request that has ended, with its timers
  await ask('forget', { name })
  await until(async () => {
    await ask('collect')
    return (await context.redis.send('EXISTS', name)) === 0
  })
})

test('the package may be loaded in a request, and used in others', async () => {
  const contents = `export default {
    async fetch() {
      const { Client } = await import('redlatch')
      await using client = await Client.connect()
      return Response.json(await client.lock('lazy').using((hold) => hold.isHeld))
    },
  }`
  await bundle({ stdin: { contents, resolveDir: __dirname }, entryNames: 'lazy' })
  writeFileSync(join(folder, 'lazy.capnp'), readFileSync(join(EXAMPLE, 'workerd.capnp'), 'utf8').replaceAll('worker.js"', 'lazy.js"'))
  const served = await serve('lazy.capnp')
  for (let count = 0; count < 2; count += 1) assert.equal(await (await fetch(served)).json(), true)
})

test('the example serves requests, one after the other for each path', async () => {
  await bundle({ entryPoints: [join(EXAMPLE, 'worker.mjs')] })
  copyFileSync(join(EXAMPLE, 'workerd.capnp'), join(folder, 'workerd.capnp'))
  const served = await serve('workerd.capnp')
  const hold = await context.client.lock('worker:/a').acquire()
  const answers = [1, 2, 3].map(() => fetch(`${served}/a`))
  await until(() => isListenedFor('redisson_lock__channel:{worker:/a}'))
  assert.equal(await (await fetch(`${served}/b`)).text(), 'held worker:/b\n')
  await hold.release()
  for (const answer of answers) assert.match(await (await answer).text(), /^(held worker:\/a|another request is at it, come again)\n$/)
  await isGone('worker:/a')
})

test('a channel is listened to where the runtime tells so by a method', () => {
  for (const told of [false, true]) {
    assert.equal(isListenedTo({ hasSubscribers: told }), told)
    assert.equal(isListenedTo({ listens: told, hasSubscribers() { return this.listens } }), told)
  }
})
