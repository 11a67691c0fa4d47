'use strict'
// The package as it is given away: what its README shows works, its files are there, without a binary it says so.

const { test } = require('node:test')
const assert = require('node:assert/strict')
const { execFileSync } = require('node:child_process')
const { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { after } = require('node:test')
const ts = require('typescript')
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

test('without a binary for the platform it says so', async () => {
  const bare = join(folder, 'bare')
  for (const part of ['lib', 'index.js', 'package.json']) {
    cpSync(join(PACKAGE, part), join(bare, part), { recursive: true })
  }
  const code = `try { require(${JSON.stringify(bare)}) } catch (error) { error.code + error.message }`
  const { stdout } = await runNode(['-p', code])
  assert.match(stdout, /^ERR_REDLATCH_NO_BINARY.*has no binary for \w+-\w+.*npm run build/)
})
