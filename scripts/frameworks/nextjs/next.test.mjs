// The route handler of docs/node-frameworks.md in Next.js, built by each of its bundlers: it takes and refuses locks on a real
// server. The server is in REDLATCH_URL. Nothing is downloaded: the compiler of Next.js is a package.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'

const HERE = dirname(fileURLToPath(import.meta.url))
const ROOT = join(HERE, '..', '..', '..')
const NEXT = join(HERE, 'node_modules', 'next', 'dist', 'bin', 'next')
const PACKAGE = join(ROOT, 'bindings-node')
const INSTALLED = join(HERE, 'node_modules', 'redlatch')
// A request to a registry would be refused.
const env = { ...process.env, NEXT_TELEMETRY_DISABLED: '1', npm_config_registry: 'http://127.0.0.1:9' }

const made = ['app', '.next', 'next.config.mjs'].map((name) => join(HERE, name))
const remove = () => Promise.all([...made, INSTALLED].map((path) => rm(path, { recursive: true, force: true })))

// The package as npm would install it: its files, and the binary that was built.
async function install() {
  const { files } = JSON.parse(await readFile(join(PACKAGE, 'package.json'), 'utf8'))
  const binaries = (await readdir(PACKAGE)).filter((name) => name.endsWith('.node'))
  const wanted = ['package.json', ...files.filter((name) => !name.includes('*') && !name.endsWith('.wasm')), ...binaries]
  await mkdir(INSTALLED, { recursive: true })
  await Promise.all(wanted.map((name) => cp(join(PACKAGE, name), join(INSTALLED, name), { recursive: true })))
}

before(async () => {
  await remove()
  await install()
  const page = await readFile(join(ROOT, 'docs', 'node-frameworks.md'), 'utf8')
  const chapter = page.split('\n## ').find((text) => text.startsWith('Next.js'))
  const [config, program] = Array.from(chapter.matchAll(/```js\n(.*?)```/gs), ([, text]) => text)
  // The text behind the handler tries it without Next.js.
  const [handler] = program.split('\nconst post = ')
  await mkdir(join(HERE, 'app', 'orders'), { recursive: true })
  await writeFile(join(HERE, 'app', 'orders', 'route.js'), handler)
  await writeFile(join(HERE, 'next.config.mjs'), config)
})

after(remove)

function next(signal, ...args) {
  const child = spawn(process.execPath, [NEXT, ...args], { cwd: HERE, env, signal, stdio: ['ignore', 'pipe', 'pipe'] })
  const said = []
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => said.push(text))
  return { child, said, lines: createInterface({ input: child.stdout }), ended: once(child, 'exit') }
}

async function build(signal, bundler) {
  const { said, ended } = next(signal, 'build', bundler)
  const [code] = await ended
  assert.equal(code, 0, said.join(''))
}

async function withApp(signal, work) {
  const { child, said, lines, ended } = next(signal, 'start', '--hostname', '127.0.0.1', '--port', '0')
  const stopped = ended.then(([code]) => assert.fail(`next start ended with ${code}: ${said.join('')}`))
  const address = (async () => {
    for await (const line of lines) {
      const found = /http:\/\/127\.0\.0\.1:\d+/.exec(line)
      if (found) return found[0]
    }
    assert.fail(`next start told no address: ${said.join('')}`)
  })()
  try {
    await work(await Promise.race([address, stopped]))
  } finally {
    stopped.catch(() => {})
    child.kill()
    await ended
  }
}

// In ms. A build takes a minute on a busy machine. Its signal stops programs that run at the limit.
const timeout = 300_000

const { Client } = createRequire(join(PACKAGE, 'package.json'))('./index.js')

for (const bundler of ['--turbopack', '--webpack']) {
  test(`a route handler built with ${bundler} takes locks`, { timeout }, async ({ signal }) => {
    await build(signal, bundler)
    await withApp(signal, async (address) => {
      const post = (id) => fetch(`${address}/orders`, { method: 'POST', body: JSON.stringify({ id }) })
      const shipped = await post(7)
      assert.deepEqual([shipped.status, await shipped.json()], [200, { shipped: 7 }])
      const client = await Client.connect()
      await client.lock('order:7').using(async () => {
        const busy = await post(7)
        assert.deepEqual([busy.status, await busy.json()], [409, { detail: 'order:7 is busy' }])
        assert.equal((await post(8)).status, 200)
      })
      assert.equal((await post(7)).status, 200)
      await client.close()
    })
  })
}
