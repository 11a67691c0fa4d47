'use strict'
// The packages as they are published, installed by npm out of a registry: each platform gets its binary, bundlers can leave
// the package out, and where there is no binary the error says why.

const { after, before, test } = require('node:test')
const assert = require('node:assert/strict')
const { execFile, spawn } = require('node:child_process')
const { once } = require('node:events')
const { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { promisify } = require('node:util')
const esbuild = require('esbuild')
const { publint } = require('publint')
const { rollup } = require('rollup')
const commonjsPlugin = require('@rollup/plugin-commonjs')
const { nodeResolve: resolvePlugin } = require('@rollup/plugin-node-resolve')
const webpack = require('webpack')
const { PLATFORMS, platform } = require('../lib/platform.js')
const { fields } = require('../scripts/fields.js')
const { PACKAGE, runNode, shared } = require('./support/index.js')
const { serve } = require('./support/registry.js')

const execute = promisify(execFile)
const context = shared()
const folder = mkdtempSync(join(tmpdir(), 'redlatch-package-'))
const made = join(folder, 'packages')
const notices = join(folder, 'notices.txt')
// Every platform but this one has a file that no system loads; the error then names it.
const broken = join(folder, 'broken.node')
// The npm that runs the tests tells them things that are not for the npm that they call.
const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name)))
// In the place of the command line: says its words and its input, or waits for a signal.
const STAND_IN = `#!/bin/sh
case $1 in
    say) shift; echo "$@"; cat; exit 7 ;;
    wait) trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05 & wait $!; done ;;
    die) kill -KILL $$ ;;
esac
`
const standIn = join(folder, 'redlatch')
let registry

const pack = (...args) => execute(process.execPath, [join(PACKAGE, 'scripts', 'pack.js'), made, ...args])

before(async () => {
  mkdirSync(made)
  writeFileSync(notices, 'licences')
  writeFileSync(broken, 'no library')
  await pack()
  const binary = (name) => (name === platform() ? join(PACKAGE, `redlatch.${name}.node`) : broken)
  writeFileSync(standIn, STAND_IN)
  const program = (name) => (name.startsWith('linux-') ? [standIn] : [])
  await Promise.all(PLATFORMS.map((name) => pack(name, binary(name), notices, ...program(name))))
  registry = await serve(made)
})
after(() => {
  registry?.stop()
  rmSync(folder, { recursive: true, force: true })
})

// A new folder with the package, as `npm install` puts it there with these arguments.
async function install(...args) {
  const place = mkdtempSync(join(folder, 'install-'))
  writeFileSync(join(place, 'package.json'), '{ "name": "program", "private": true, "type": "module" }')
  const options = [`--registry=${registry.url}`, `--cache=${join(folder, 'cache')}`, '--no-audit', '--no-fund', '--loglevel=error']
  await execute('npm', ['install', 'redlatch', ...options, ...args], { cwd: place, env })
  return place
}

const binaries = (place) => {
  const scope = join(place, 'node_modules', '@redlatch')
  return existsSync(scope) ? readdirSync(scope) : []
}

// The platform as a program's first lines, so that the package believes to be there.
const pretend = (name) => {
  const [os, cpu, suffix] = name.split('-')
  const node = join(folder, `node-${suffix}`)
  writeFileSync(node, `/lib/ld-${suffix === 'musl' ? 'musl-x86_64' : 'linux'}.so.1`)
  return Object.entries({ platform: os, arch: cpu, execPath: node })
    .map(([field, value]) => `Object.defineProperty(process, '${field}', { value: ${JSON.stringify(value)} })`)
    .join(';')
}

const inside = (place) => `require = require('node:module').createRequire(${JSON.stringify(join(place, 'program.js'))});`

// The error with which the package of that folder refuses to load.
async function errorOf(place, name) {
  const told = 'console.log(JSON.stringify({ ...error, text: error.message }))'
  const code = `${inside(place)} ${pretend(name)}; try { require('redlatch') } catch (error) { ${told} }`
  const { stdout, stderr } = await runNode(['-e', code], { REDLATCH_WASM: '0' })
  assert.notEqual(stdout, '', stderr || 'it was loaded')
  return JSON.parse(stdout)
}

for (const name of PLATFORMS) {
  test(`npm takes the binary of ${name} there, and no other`, async () => {
    const { os, cpu, libc = [] } = fields(name)
    const place = await install(`--os=${os}`, `--cpu=${cpu}`, ...libc.map((is) => `--libc=${is}`))
    assert.deepEqual(binaries(place), [name])
    if (name === platform()) {
      const { code, stderr } = await runNode(['-e', `${inside(place)} require('redlatch')`])
      assert.equal(code, 0, stderr)
    } else {
      const { code, platform: told, text } = await errorOf(place, name)
      assert.deepEqual([code, told], ['ERR_REDLATCH_NO_BINARY', name])
      assert.match(text, new RegExp(`cannot be loaded.*@redlatch/${name}/redlatch.${name}.node`))
    }
  })
}

for (const [os, cpu] of [['freebsd', 'x64'], ['linux', 'riscv64']]) {
  test(`on ${os} ${cpu} npm installs no binary, and the error says for what there is one`, async () => {
    const place = await install(`--os=${os}`, `--cpu=${cpu}`)
    assert.deepEqual(binaries(place), [])
    const { code, platform: told, text } = await errorOf(place, `${os}-${cpu}`)
    assert.equal(code, 'ERR_REDLATCH_NO_BINARY')
    assert.match(text, new RegExp(`no binary for ${told} here: .*linux-x64-gnu.*npm run build`))
    assert.match(told, new RegExp(`^${os}-${cpu}`))
  })
}

test('without its optional dependencies the package says what to install', async () => {
  const place = await install('--omit=optional')
  assert.deepEqual(binaries(place), [])
  const { code, text } = await errorOf(place, 'linux-x64-musl')
  assert.equal(code, 'ERR_REDLATCH_NO_BINARY')
  assert.match(text, /npm install @redlatch\/linux-x64-musl@\d.*external: \['redlatch'\]/)
})

if (process.platform === 'linux') {
  test('npx runs the command line of the platform', async () => {
    const place = await install()
    const command = join(place, 'node_modules', '.bin', 'redlatch')
    const said = execute('npx', ['--no-install', 'redlatch', 'say', 'a', 'b  c'], { cwd: place, env })
    said.child.stdin.end('input')
    await assert.rejects(said, { code: 7, stdout: 'a b  c\ninput' })

    const waiting = spawn(command, ['wait'], { stdio: ['ignore', 'pipe', 'inherit'] })
    const told = []
    waiting.stdout.setEncoding('utf8').on('data', (text) => {
      told.push(text)
      if (text === 'ready\n') waiting.kill('SIGTERM')
    })
    const [code] = await once(waiting, 'close')
    assert.deepEqual([told.join(''), code], ['ready\ntold\n', 9])

    // In its place it is what the signal ends; as its child it gives the code of a shell.
    const ended = await once(spawn(command, ['die'], { stdio: 'ignore' }), 'close')
    assert.deepEqual(ended, process.execve ? [null, 'SIGKILL'] : [137, null])
  })

  test('without the package of the platform npx says what to install', async () => {
    const place = await install('--omit=optional')
    const command = execute(join(place, 'node_modules', '.bin', 'redlatch'), ['ping'])
    await assert.rejects(command, { code: 69, stderr: /^redlatch: the package @redlatch\/linux-.* npm install @redlatch\/linux-/ })
  })

  const command = `require(${JSON.stringify(join(PACKAGE, 'bin', 'redlatch.js'))})`

  test('on an architecture without a package npx advises to install none', async () => {
    const { code, stderr } = await runNode(['-e', `${pretend('linux-riscv64-gnu')}; ${command}`])
    assert.deepEqual([code, stderr], [69, 'redlatch: no package has the program for linux-riscv64-gnu; with Rust: cargo install redlatch-cli\n'])
  })

  test('npx says that the program cannot be run', async () => {
    const scope = join(folder, 'unrunnable', '@redlatch', platform())
    mkdirSync(scope, { recursive: true })
    writeFileSync(join(scope, 'redlatch'), '')
    // As process.execve of some versions of Node.js ends where it fails.
    const { code, stderr } = await runNode(['-e', `process.execve = () => process.abort(); ${command}`], { NODE_PATH: join(folder, 'unrunnable') })
    assert.equal(code, 126, stderr)
    assert.match(stderr, /^redlatch: cannot run .*redlatch: EACCES/)
  })
}

test('publint has no objection to the packages', async () => {
  for (const file of readdirSync(made)) {
    const { messages } = await publint({ pack: { tarball: new Uint8Array(readFileSync(join(made, file))).buffer } })
    assert.deepEqual(messages, [], file)
  }
})

test('every entry of the package can be imported and required', async () => {
  const place = await install()
  const { exports } = JSON.parse(readFileSync(join(PACKAGE, 'package.json'), 'utf8'))
  for (const entry of Object.keys(exports)) {
    if (entry === './opentelemetry') continue // it needs a package that is not installed here
    const name = join('redlatch', entry)
    const code = `${inside(place)} require(${JSON.stringify(name)})`
    assert.deepEqual([(await runNode(['-e', code])).stderr, name], ['', name])
    if (entry.endsWith('.json')) continue
    writeFileSync(join(place, 'entry.mjs'), `import * as all from ${JSON.stringify(name)}; console.log(Object.keys(all).some((word) => word !== 'default'))`)
    assert.deepEqual([await runNode([join(place, 'entry.mjs')])].map(({ stdout, stderr }) => [stdout, stderr]), [['true\n', '']])
  }
})

test('every module resolution finds the types (attw)', async () => {
  const [file] = readdirSync(made).filter((name) => /^redlatch-\d/.test(name))
  const attw = join(PACKAGE, 'node_modules', '.bin', 'attw')
  await execute(attw, [join(made, file), '--no-color'])
})

// --- bundlers ---

const PROGRAM = "import { Client } from 'redlatch'\nconst client = await Client.connect()\nawait client.close()\nconsole.log('closed')\n"

async function program() {
  const place = await install()
  writeFileSync(join(place, 'program.mjs'), PROGRAM)
  // CommonJS knows no `await` outside of a function.
  writeFileSync(join(place, 'program.cjs'), PROGRAM.replace(/import .*/, 'const { Client } = require("redlatch"); (async () => {') + '})()')
  return place
}

async function runs(file) {
  const { stdout, stderr } = await runNode([file], { REDLATCH_URL: context.url })
  assert.deepEqual([stdout, stderr], ['closed\n', ''])
}

test('esbuild leaves the package out, or copies its binary, or says which file it cannot bundle', async () => {
  const place = await program()
  const options = { absWorkingDir: place, bundle: true, platform: 'node', logLevel: 'silent' }
  const build = (entry, outfile, more) => esbuild.build({ ...options, entryPoints: [entry], outfile, ...more })
  await build('program.mjs', 'external.mjs', { format: 'esm', external: ['redlatch'] })
  await runs(join(place, 'external.mjs'))
  await build('program.cjs', 'copied/bundle.cjs', { loader: { '.node': 'copy' } })
  await runs(join(place, 'copied', 'bundle.cjs'))
  await assert.rejects(build('program.mjs', 'bundled.mjs', { format: 'esm' }), ({ errors }) => {
    assert.match(errors[0].text, /No loader is configured for "\.node" files: .*redlatch\.[\w-]+\.node/)
    return true
  })
  rmSync(join(place, 'node_modules', '@redlatch'), { recursive: true })
  await build('program.cjs', 'without.cjs')
  const { stderr } = await runNode([join(place, 'without.cjs')], { REDLATCH_WASM: '0' })
  assert.match(stderr, /A bundler has to leave redlatch out \(external: \['redlatch'\]\)/)
})

test('webpack leaves the package out, or says which file it cannot bundle', async () => {
  const place = await program()
  const build = async (more) => {
    const output = { path: place, filename: 'bundle.cjs' }
    const options = { context: place, entry: './program.cjs', output, target: 'node', mode: 'production', ...more }
    const compiler = webpack(options)
    const stats = await promisify(compiler.run.bind(compiler))()
    await promisify(compiler.close.bind(compiler))()
    return stats.toJson({ all: false, errors: true, warnings: true })
  }
  const { errors, warnings } = await build({ externals: { redlatch: 'commonjs redlatch' } })
  assert.deepEqual([errors, warnings], [[], []])
  await runs(join(place, 'bundle.cjs'))
  const bundled = await build({})
  assert.match(bundled.errors.map((error) => `${error.moduleName}: ${error.message}`).join(), /@redlatch\/[\w-]+\/redlatch\.[\w-]+\.node: .*appropriate loader/s)
})

test('Rollup leaves the package out, or says which of its files it cannot bundle', async () => {
  const place = await program()
  const plugins = [resolvePlugin(), commonjsPlugin()]
  const build = async (more) => {
    const bundle = await rollup({ input: join(place, 'program.mjs'), plugins, onwarn: () => {}, ...more })
    await bundle.write({ file: join(place, 'rolled.mjs'), format: 'es' })
    await bundle.close()
  }
  await build({ external: ['redlatch'] })
  await runs(join(place, 'rolled.mjs'))
  await assert.rejects(build({}), /node_modules\/(@?redlatch)\//)
})

test('Vite leaves the package out of a server build by itself', async () => {
  const place = await program()
  const { build } = await import('vite')
  const options = { ssr: './program.mjs', outDir: 'built', emptyOutDir: true }
  await build({ root: place, configFile: false, logLevel: 'silent', build: options })
  await runs(join(place, 'built', readdirSync(join(place, 'built')).find((name) => name.startsWith('program.'))))
})
