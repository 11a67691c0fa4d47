'use strict'
// The declarations are what there is: index.d.ts and index.mjs against the tables of the core, and by the compiler.

const { test } = require('node:test')
const assert = require('node:assert/strict')
const { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const ts = require('typescript')
const tables = JSON.parse(require('../lib/native.js').tables())
const { PLACE } = require('../lib/place.js')
const redlatch = require('../index.js')
const { PACKAGE, runNode, shared } = require('./support/index.js')

const context = shared()

const text = readFileSync(join(PACKAGE, 'index.d.ts'), 'utf8')
const declared = ts.createSourceFile('index.d.ts', text, ts.ScriptTarget.Latest)
const named = (name) => declared.statements.find((statement) => statement.name?.text === name)
const members = (name) =>
  Object.fromEntries(named(name).members.map((member) => [member.name.text, member.type.getText(declared)]))
const union = (name) => named(name).type.types.map((type) => type.literal.text)

test('the options are those of the table, with their types', () => {
  const types = { Duration: 'Time | null', Flag: 'boolean | null', Count: 'number | null', Word: 'string | null' }
  Object.assign(types, { Text: 'string | null', Pem: 'string | null' })
  const typeOf = (name, type) => types[type] ?? `${name[0].toUpperCase()}${name.slice(1)} | null`
  const table = (scope) =>
    Object.fromEntries(
      tables.options
        .filter((option) => option.scope === scope)
        .map(({ spelled, type }) => [spelled, typeOf(spelled, type.split(/[ (]/)[0])]),
    )
  const { signal, key, hold, context, ...attempt } = members('TryOptions')
  assert.ok(signal && key && hold && context)
  const acquire = { ...attempt, ...members('AcquireOptions'), ...members('TryPermitsOptions') }
  assert.deepEqual(acquire, table('acquire'))
  assert.deepEqual({ ...members('LockDefaults'), ...members('SemaphoreOptions') }, table('lock'))
  assert.deepEqual(members('ClientOptions'), table('client'))
  assert.deepEqual(Object.keys(members('Place')), PLACE)
})

test('the words of options are those of the table', () => {
  for (const [union_, option] of [['Kind', 'kind'], ['ClusterPubsub', 'cluster_pubsub'], ['Protocol', 'protocol']]) {
    const { type } = tables.options.find(({ name }) => name === option)
    assert.deepEqual(union(union_), JSON.parse(type.slice('Choice('.length, -1)))
  }
})

test('the errors are those of the table', () => {
  const kinds = tables.errors
  assert.deepEqual(union('ErrorKind'), kinds.map(({ name }) => name))
  assert.deepEqual(union('LostReason'), tables.reasons.map(({ name }) => name))
  const classes = Object.values(redlatch).filter((value) => value.kind !== undefined)
  assert.deepEqual(
    classes.map(({ kind, retryable }) => [kind, retryable]),
    kinds.map(({ name, retryable }) => [name, retryable]),
  )
  for (const errorClass of classes) {
    const error = new errorClass('text', { lockName: 'a', cause: 1 })
    assert.equal(redlatch[errorClass.name], errorClass)
    assert.deepEqual([error.name, error.message, error.lockName, error.cause], [errorClass.name, 'text', 'a', 1])
    assert.equal(error.code, `ERR_REDLATCH_${error.kind.toUpperCase()}`)
    assert.equal(String(error), `${errorClass.name}: text`)
  }
  assert.deepEqual(
    ['LockTimeoutError', 'LockCancelledError', 'NotOwnerError', 'LockLostError', 'NameNotClusterableError'].filter(
      (name) => !(name in redlatch),
    ),
    [],
  )
})

test('the counters are those of the core', () => {
  assert.deepEqual(Object.keys(members('Stats')), Object.keys(context.client.stats()))
})

test('import and require give the same, and all of it is declared', async () => {
  const imported = await import('../index.mjs')
  assert.deepEqual(Object.keys(imported).sort(), Object.keys(redlatch).sort())
  for (const [name, value] of Object.entries(redlatch)) assert.equal(imported[name], value, name)
  const classes = declared.statements.filter(ts.isClassDeclaration).map((statement) => statement.name.text)
  assert.deepEqual(classes.sort(), Object.keys(redlatch).sort())
  for (const name of ['Client', 'Lock', 'MultiLock', 'Semaphore', 'PlainSemaphore', 'PlainPermit', 'CountDownLatch', 'Hold']) {
    for (const { name: member, modifiers } of named(name).members) {
      if (member === undefined || !ts.isIdentifier(member)) continue
      const isStatic = modifiers?.some(({ kind }) => kind === ts.SyntaxKind.StaticKeyword)
      assert.ok(member.text in (isStatic ? redlatch[name] : redlatch[name].prototype), `${name}.${member.text}`)
    }
  }
})

test('a browser gets the same names', () => {
  const exported = (file) => /export const \{([^}]*)\}/.exec(readFileSync(join(PACKAGE, file), 'utf8'))[1]
  assert.equal(exported('browser.mjs'), exported('index.mjs'))
})

// Checks and compiles all that tsconfig.json names, declarations too, but not the libraries; gives what is wrong.
function compile(outDir) {
  const wanted = { noEmit: false, skipLibCheck: false, outDir }
  const config = ts.getParsedCommandLineOfConfigFile(join(PACKAGE, 'tsconfig.json'), wanted, ts.sys)
  const program = ts.createProgram(config.fileNames, config.options)
  const own = program.getRootFileNames().map((name) => program.getSourceFile(name))
  assert.ok(own.length >= 4)
  const wrong = [...config.errors, ...program.getOptionsDiagnostics(), ...program.emit().diagnostics]
  for (const file of own) wrong.push(...program.getSyntacticDiagnostics(file), ...program.getSemanticDiagnostics(file))
  const host = { getCanonicalFileName: (name) => name, getCurrentDirectory: () => PACKAGE, getNewLine: () => '\n' }
  return ts.formatDiagnostics(wrong, host)
}

test('the declarations hold, and `await using` works when it is compiled', async () => {
  const out = mkdtempSync(join(tmpdir(), 'redlatch-types-'))
  try {
    assert.equal(compile(out), '')
    mkdirSync(join(out, 'node_modules'))
    symlinkSync(PACKAGE, join(out, 'node_modules', 'redlatch'))
    const ran = await runNode([join(out, 'test/types/usage.js')], { REDLATCH_URL: context.url })
    assert.deepEqual([ran.code, ran.stdout], [0, 'forced\ndone\n'], ran.stderr)
    // The server in memory is native alone.
    const tested = await runNode([join(out, 'test/types/testing.js')], { REDLATCH_WASM: '0' })
    assert.deepEqual([tested.code, tested.stdout], [0, 'done\n'], tested.stderr)
  } finally {
    rmSync(out, { recursive: true, force: true })
  }
})
