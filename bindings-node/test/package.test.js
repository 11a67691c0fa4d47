'use strict'
// The package as it is given away: what its README shows works, its files are there, without a binary it says so.

const { test } = require('node:test')
const assert = require('node:assert/strict')
const { execFileSync, spawnSync } = require('node:child_process')
const { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { after } = require('node:test')
const ts = require('typescript')
const { fields, platform } = require('../lib/platform.js')
const { PACKAGE, runNode, shared } = require('./support/index.js')

const context = shared()
const folder = mkdtempSync(join(tmpdir(), 'redlatch-package-'))
after(() => rmSync(folder, { recursive: true, force: true }))
mkdirSync(join(folder, 'node_modules'))
symlinkSync(PACKAGE, join(folder, 'node_modules', 'redlatch'))

const readme = readFileSync(join(PACKAGE, 'README.md'), 'utf8')
const snippets = [...readme.matchAll(/^```(js|ts)\n(.*?)^```/gms)].map(([, language, text]) => ({ language, text }))

test('the README shows programs', () => assert.ok(snippets.length >= 3))

for (const [number, { language, text }] of snippets.entries()) {
  test(`program ${number + 1} of the README runs`, async () => {
    const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022 }
    const program = language === 'js' ? text : ts.transpileModule(text, { compilerOptions }).outputText
    const file = join(folder, `${number}.mjs`)
    writeFileSync(file, program)
    const ended = await runNode([file], { REDLATCH_URL: context.url })
    assert.deepEqual([ended.code, ended.stderr], [0, ''])
  })
}

test('the package has all that its code and its declarations need', () => {
  const listed = execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], {
    cwd: PACKAGE,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  const files = JSON.parse(listed)[0].files.map(({ path }) => path)
  const wanted = ['README.md', 'index.d.mts', 'index.d.ts', 'index.js', 'index.mjs', 'lib/native.js', 'package.json']
  assert.deepEqual(wanted.filter((file) => !files.includes(file)), [])
  assert.equal(files.filter((file) => file.endsWith('.node')).length, 1)
  assert.deepEqual(files.filter((file) => /^(src|test|target|scripts|node_modules)\//.test(file)), [])
})

// The package as it is packed on a processor like this, in a folder of its own, with the binary of the build.
function packedOn(arch) {
  const source = mkdtempSync(join(folder, 'source-'))
  const parts = ['lib', 'scripts', 'index.js', 'index.mjs', 'package.json', `redlatch.${platform()}.node`]
  for (const part of parts) cpSync(join(PACKAGE, part), join(source, part), { recursive: true })
  const run = (command, ...args) => execFileSync(command, args, { cwd: source, encoding: 'utf8' })
  const before = readFileSync(join(source, 'package.json'), 'utf8')
  run('node', '-e', `Object.defineProperty(process, 'arch', { value: '${arch}' }); require('./scripts/fields.js')`)
  const name = run('npm', 'pack', '--silent', '--ignore-scripts', '--pack-destination', source).trim()
  run('node', 'scripts/fields.js', '--back')
  assert.equal(readFileSync(join(source, 'package.json'), 'utf8'), before)
  return join(source, name)
}

function install(file) {
  const place = mkdtempSync(join(folder, 'install-'))
  writeFileSync(join(place, 'package.json'), '{ "name": "program", "private": true }')
  // The caller of the tests may have told npm to be silent.
  const command = ['install', '--offline', '--no-audit', '--no-fund', '--loglevel=error', file]
  const { status, stderr } = spawnSync('npm', command, { cwd: place, encoding: 'utf8' })
  return { status, stderr, place }
}

test('the package goes to its platform only: elsewhere npm refuses it, and says which it is for', () => {
  const own = install(packedOn(process.arch))
  assert.equal(own.status, 0, own.stderr)
  execFileSync('node', ['-e', 'require("redlatch")'], { cwd: own.place })
  const { os, cpu, libc } = require(join(own.place, 'node_modules', 'redlatch', 'package.json'))
  assert.deepEqual({ os, cpu, libc }, fields())
  const other = process.arch === 'x64' ? 'arm64' : 'x64'
  const { status, stderr } = install(packedOn(other))
  assert.notEqual(status, 0)
  assert.match(stderr, new RegExp(`EBADPLATFORM[^]*redlatch@[^]*"cpu":"${other}"[^]*"cpu":"${process.arch}"`))
})

test('without a binary for the platform it says so, and for which there is one', async () => {
  const bare = join(folder, 'bare')
  for (const part of ['lib', 'index.js', 'package.json']) {
    cpSync(join(PACKAGE, part), join(bare, part), { recursive: true })
  }
  const code = `try { require(${JSON.stringify(bare)}) } catch (error) { error.code + error.message }`
  const { stdout } = await runNode(['-p', code])
  assert.match(stdout, /^ERR_REDLATCH_NO_BINARY.*has no binary for \w+-\w+-\w+ here: .*npm run build/)
  writeFileSync(join(bare, 'redlatch.linux-riscv64-musl.node'), '')
  const others = await runNode(['-p', code])
  assert.match(others.stdout, /here, only for linux-riscv64-musl: .*npm run build/)
  writeFileSync(join(bare, `redlatch.${platform()}.node`), 'no library')
  const broken = await runNode(['-p', code])
  assert.match(broken.stdout, /^ERR_REDLATCH_NO_BINARY.*cannot be loaded \(.*\); this is linux-\w+-\w+.*npm run build/)
})
