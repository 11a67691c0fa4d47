'use strict'
// Finds the native part: beside this package when it was built from a checkout, else in the package for this platform.

const { existsSync } = require('node:fs')
const { join } = require('node:path')
const { platform } = require('./platform.js')

function load() {
  const target = platform()
  const local = join(__dirname, '..', `redlatch.${target}.node`)
  if (existsSync(local)) return require(local)
  try {
    return require(`redlatch-${target}`)
  } catch (cause) {
    if (cause.code !== 'MODULE_NOT_FOUND') throw cause
    const remedy =
      'There are binaries for the platforms listed in the README. If yours is one of them, install again without ' +
      '--omit=optional; in a checkout run `npm run build`.'
    throw Object.assign(new Error(`redlatch has no binary for ${target} here. ${remedy}`, { cause }), {
      code: 'ERR_REDLATCH_NO_BINARY',
    })
  }
}

module.exports = load()
