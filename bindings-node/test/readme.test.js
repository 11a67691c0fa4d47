'use strict'
// The programs of the README run.

const { test } = require('node:test')
const assert = require('node:assert/strict')
const { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } = require('node:fs')
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
    // The server in memory is native alone.
    const part = text.includes("'redlatch/testing'") ? { REDLATCH_WASM: '0' } : {}
    const ended = await runNode([file], { REDLATCH_URL: context.url, ...part })
    assert.deepEqual([ended.code, ended.stderr], [0, ''])
  })
}

