'use strict'
// Loads the native part, which was built for this platform and lies beside package.json.

const { existsSync } = require('node:fs')
const { join } = require('node:path')
const { platform } = require('./platform.js')

function load() {
  const target = platform()
  const file = join(__dirname, '..', `redlatch.${target}.node`)
  if (existsSync(file)) return require(file)
  const remedy = 'In a checkout `npm run build` makes it, with Rust and on Linux.'
  const error = new Error(`redlatch has no binary for ${target} here: ${file} is missing. ${remedy}`)
  throw Object.assign(error, { code: 'ERR_REDLATCH_NO_BINARY' })
}

module.exports = load()
