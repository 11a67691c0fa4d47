'use strict'
// Loads the native part, which was built for one platform and lies beside package.json.

const { existsSync, readdirSync } = require('node:fs')
const { join } = require('node:path')
const { platform, report } = require('./platform.js')

const FOLDER = join(__dirname, '..')
const REMEDY = 'In a checkout of redlatch `npm run build` makes it, with Rust and on Linux; `npm pack` makes a package of it.'

function load() {
  const target = platform()
  const file = join(FOLDER, `redlatch.${target}.node`)
  if (!existsSync(file)) throw noBinary(`redlatch has no binary for ${target} here${others()}: ${file} is missing. ${REMEDY}`)
  try {
    return require(file)
  } catch (cause) {
    const { glibcVersionRuntime: glibc } = report().header
    const here = `${target}${glibc === undefined ? '' : `, glibc ${glibc}`}`
    throw noBinary(`redlatch's binary cannot be loaded (${cause.message}); this is ${here}. ${REMEDY}`, cause)
  }
}

// For which platforms this package was made.
function others() {
  const made = readdirSync(FOLDER).map((name) => /^redlatch\.(.+)\.node$/.exec(name)?.[1])
  const known = made.filter((target) => target !== undefined)
  return known.length === 0 ? '' : `, only for ${known.join(', ')}`
}

function noBinary(message, cause) {
  return Object.assign(new Error(message, { cause }), { code: 'ERR_REDLATCH_NO_BINARY' })
}

module.exports = load()
