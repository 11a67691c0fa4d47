'use strict'
// Builds the native part and puts it where lib/native.js finds it: redlatch.<platform>.node beside package.json.
//
// node scripts/build.js [--release]

const { spawnSync } = require('node:child_process')
const { copyFileSync, renameSync } = require('node:fs')
const { join } = require('node:path')
const { platform } = require('../lib/platform.js')

const root = join(__dirname, '..')
const unknown = process.argv.slice(2).filter((word) => word !== '--release')
if (unknown.length > 0) {
  console.error(`build.js knows no ${unknown.join(' ')}; it takes --release`)
  process.exit(64)
}
// A development build is one of the whole workspace: scripts/build says why.
const words = process.argv.includes('--release') ? ['--release'] : ['--workspace', '--lib']
const cargo = ['build', '--message-format=json-render-diagnostics', ...words]
const built = spawnSync('cargo', cargo, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 2 ** 28 })
if (built.error) throw built.error
if (built.status !== 0) process.exit(built.status ?? 1)

const messages = built.stdout.split('\n').filter(Boolean).map(line => JSON.parse(line))
const library = messages.findLast(message => message.reason === 'compiler-artifact' && message.target.name === 'redlatch_node')
const target = join(root, `redlatch.${platform()}.node`)
// A running program may have the old file mapped: it keeps it, the name gets the new one.
copyFileSync(library.filenames.find(name => /\.(so|dylib|dll)$/.test(name)), `${target}.new`)
renameSync(`${target}.new`, target)
