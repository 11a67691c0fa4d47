'use strict'
// Loads the native part: in a checkout the file beside package.json, else the package of the platform. Where none fits, the
// WebAssembly part takes its place: it has the same functions. REDLATCH_WASM=1 takes it anyway, `thread` on a thread, 0 never.

const { existsSync } = require('node:fs')
const { createRequire } = require('node:module')
const { join } = require('node:path')
const { PLATFORMS, glibcVersion, platform } = require('./platform.js')

function load() {
  const name = platform()
  const file = join(__dirname, '..', `redlatch.${name}.node`)
  try {
    // Bundlers complain of a `require` of a computed name. They have to see the others, and go on without those that
    // are not installed: they do so inside a `try`.
    if (existsSync(file)) return createRequire(__filename)(file)
    switch (name) {
      case 'darwin-arm64': return require('@redlatch/darwin-arm64')
      case 'darwin-x64': return require('@redlatch/darwin-x64')
      case 'linux-arm64-gnu': return require('@redlatch/linux-arm64-gnu')
      case 'linux-arm64-musl': return require('@redlatch/linux-arm64-musl')
      case 'linux-x64-gnu': return require('@redlatch/linux-x64-gnu')
      case 'linux-x64-musl': return require('@redlatch/linux-x64-musl')
      case 'win32-arm64-msvc': return require('@redlatch/win32-arm64-msvc')
      case 'win32-x64-msvc': return require('@redlatch/win32-x64-msvc')
    }
  } catch (cause) {
    throw noBinary(name, cause)
  }
  throw noBinary(name)
}

function noBinary(name, cause) {
  const message = `redlatch has no binary for ${name} here: ${problem(name, cause)}`
  return Object.assign(new Error(message, { cause }), { code: 'ERR_REDLATCH_NO_BINARY', platform: name })
}

// Why there is none, and what to do about it.
function problem(name, cause) {
  if (!PLATFORMS.includes(name)) {
    return `there are some for ${PLATFORMS.join(', ')}. On another system it can be built in a checkout, with Rust: \`npm run build\`.`
  }
  if (cause.code !== 'MODULE_NOT_FOUND') {
    const glibc = name.endsWith('-gnu') ? `, with glibc ${glibcVersion()}` : ''
    return `it cannot be loaded${glibc} (${cause.message}).`
  }
  const { version } = require('../package.json')
  return (
    `the package @redlatch/${name} is not installed. npm leaves it out with --omit=optional, and where package-lock.json or ` +
    `node_modules come from another platform: remove both and install here, or \`npm install @redlatch/${name}@${version}\`. ` +
    "A bundler has to leave redlatch out (external: ['redlatch']). In a checkout `npm run build` makes the binary, with Rust."
  )
}

function loadOrInstead() {
  if (['1', 'thread'].includes(process.env.REDLATCH_WASM)) return require('./wasm/file.js')
  try {
    return load()
  } catch (error) {
    if (process.env.REDLATCH_WASM === '0' || error.code !== 'ERR_REDLATCH_NO_BINARY') throw error
    let instead
    try {
      instead = require('./wasm/file.js')
    } catch {
      throw error // a package without the module, or a runtime without WebAssembly
    }
    const difference = 'The WebAssembly part is used: a blocked event loop renews no lock, unless REDLATCH_WASM=thread gives it a thread.'
    const text = `${error.message} ${difference} See docs/wasm.md.`
    process.emitWarning(text, { type: 'RedlatchWarning', code: 'REDLATCH_WASM' })
    return instead
  }
}

module.exports = loadOrInstead()
