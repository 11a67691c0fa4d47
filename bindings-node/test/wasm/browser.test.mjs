// The package in a browser: esbuild makes the bundle, a WebSocket relay is the way to the server. scripts/setup-browser gets browser
// and relay. Run with REDLATCH_WASM=1, or on the native part: only the other side runs here.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, createReadStream, existsSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { extname, join } from 'node:path'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import esbuild from 'esbuild'
import { launch } from '../../../scripts/site/browser.mjs'

const require = createRequire(import.meta.url)
const { Client, LockTimeoutError } = require('../../index.js')
const { PACKAGE, Connection, Server, freshName, until } = require('../support/index.js')
const root = fileURLToPath(new URL('../../..', import.meta.url))
const example = join(root, 'examples', 'browser')
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.wasm': 'application/wasm' }

let folder, site, home, server, redis, relay, address, browser, end, client

// A relay of its own: one that is ended is ended for one test only.
async function startRelay(port = '0') {
  const env = { ...process.env, REDLATCH_URL: server.url, ORIGIN: home, PORT: port }
  const child = spawn(process.execPath, [join(folder, 'relay.mjs')], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  const [line] = await once(child.stdout, 'data')
  return [child, `${line}`.trim()]
}

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'redlatch-page-'))
  for (const file of ['relay.mjs', 'index.html']) cpSync(join(example, file), join(folder, file))
  symlinkSync(join(root, 'scripts', 'site', 'node_modules'), join(folder, 'node_modules'))
  cpSync(join(PACKAGE, 'redlatch.wasm'), join(folder, 'redlatch.wasm'))
  writeFileSync(join(folder, 'empty.html'), '<!doctype html>')
  const all = `export { Client, InvalidArgumentError } from 'redlatch'; export * from ${JSON.stringify(join(example, 'stream.mjs'))}`
  const how = { bundle: true, format: 'esm', outdir: folder, absWorkingDir: example, logLevel: 'error' }
  await esbuild.build({ ...how, entryPoints: ['page.mjs'] })
  await esbuild.build({ ...how, stdin: { contents: all, resolveDir: example }, entryNames: 'all' })

  site = createServer((request, response) => {
    const { pathname } = new URL(request.url, 'http://site')
    const file = join(folder, pathname === '/' ? 'index.html' : pathname)
    if (!existsSync(file)) return response.writeHead(404).end()
    response.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'application/octet-stream' })
    createReadStream(file).pipe(response)
  })
  await once(site.listen(0, '127.0.0.1'), 'listening')
  home = `http://127.0.0.1:${site.address().port}`
  server = await Server.start()
  redis = await Connection.open(server.port)
  ;[relay, address] = await startRelay()
  ;({ browser, end } = await launch())
  client = await Client.connect(server.url)
})

after(async () => {
  await client?.close()
  await end?.()
  relay?.kill()
  redis?.end()
  await server?.stop()
  site?.close()
  site?.closeAllConnections()
  if (folder) rmSync(folder, { recursive: true, force: true })
})

async function open(path) {
  const page = await (await browser.newContext()).newPage()
  page.wrong = []
  page.on('pageerror', (error) => page.wrong.push(`${error}`))
  await page.goto(`${home}${path}`)
  return page
}

// A page that has the package in `all`, and a client.
async function withClient(options = {}, by = address) {
  const page = await open('/empty.html')
  await page.evaluate(
    async ([options, by]) => {
      globalThis.all = await import('/all.js')
      globalThis.client = await all.Client.connect('redis://relay', { ...options, connect: all.streamBy(by) })
    },
    [options, by],
  )
  return page
}

test('the pages of the example take turns, and their waiters are woken', async () => {
  const [one, two] = await Promise.all([1, 2].map(() => open(`/?relay=${address}`)))
  const shows = (page, text) => page.locator('output', { hasText: new RegExp(`^${text}$`) }).waitFor()
  await Promise.all([shows(one, 'free'), shows(two, 'free')])
  await one.click('button')
  await shows(one, 'mine')
  await two.click('button')
  await shows(two, 'waiting')
  assert.equal((await client.lock('document:42').holders()).length, 1)
  await one.click('button')
  await shows(two, 'mine')
  await redis.send('DEL', 'document:42')
  await shows(two, 'lost')
  assert.deepEqual([...one.wrong, ...two.wrong], [])
})

test('a page of the example tells an error, and can be clicked again', async () => {
  const [child, by] = await startRelay()
  const page = await open(`/?relay=${by}`)
  const shows = (text) => page.locator('output', { hasText: text }).waitFor()
  await redis.send('SET', 'document:42', 'no lock')
  await shows('free')
  await page.click('button')
  await shows(/lock "document:42"/)
  await redis.send('DEL', 'document:42')
  await page.click('button')
  await shows('mine')
  await page.click('button')
  await shows('free')
  assert.deepEqual(page.wrong, [])
  child.kill()
})

test('a page and a program of Node.js keep each other out, and the holder is a browser', async () => {
  const page = await withClient()
  const name = freshName()
  await page.evaluate(async (name) => {
    globalThis.hold = await client.lock(name, { watchdogLease: 3000 }).acquire()
  }, name)
  const [holder] = await client.lock(name).holders()
  assert.equal(holder.process?.language, 'browser')
  await assert.rejects(client.lock(name).acquire({ wait: 0 }), LockTimeoutError)
  const waiting = client.lock(name).acquire()
  // It is renewed: the rest of its lease grows again.
  let last = Infinity
  await until(async () => {
    const [before, now] = [last, await redis.send('PTTL', name)]
    last = now
    return now > before
  })
  assert.equal(await page.evaluate(() => hold.isHeld), true)
  await page.evaluate(() => hold.release())
  await (await waiting).release()
  assert.deepEqual(page.wrong, [])
})

test('a relay that ends is told', async () => {
  const [child, by] = await startRelay()
  const page = await withClient({ outage: 200 }, by)
  child.kill()
  await once(child, 'exit')
  const told = await page.evaluate(() => client.lock('n').acquire().catch(({ name, message }) => `${name}: ${message}`))
  assert.match(told, /^UnavailableError: .*(closed the connection|cannot be reached)/)
  const [next] = await startRelay(new URL(by).port)
  await page.evaluate(() => client.lock('n').acquire().then((hold) => hold.release()))
  next.kill()
})

test('events come, and what a browser does not have is refused', async () => {
  const page = await withClient({ clientName: 'last' })
  assert.match(await redis.send('CLIENT', 'LIST'), / name=last/)
  const seen = await page.evaluate(async (by) => {
    const told = []
    const tell = (error) => told.push(error instanceof all.InvalidArgumentError && error.message)
    await all.Client.connect('redis://h').catch(tell)
    await all.Client.connect(undefined, { connect: all.streamBy(by) }).catch(tell)
    try {
      client.lock('n', { context: true })
    } catch (error) {
      tell(error)
    }
    const ended = new Promise((resolve) => client.once('end', resolve))
    await client.close()
    await ended
    return told
  }, address)
  assert.match(seen[0], /no sockets here; give connect/)
  assert.match(seen[1], /no URL/)
  assert.match(seen[2], /context is true.*key or hold/)
  await until(async () => !(await redis.send('CLIENT', 'LIST')).includes(' name=last'))
})
