'use strict'
// A server in memory for tests of programs, in the process of the test.

const native = require('#native')
const { unwrap } = require('./lib/errors.js').internal
const { asyncDispose } = require('./lib/names.js')
const { shown } = require('./lib/options.js')
const { InvalidArgumentError } = require('./lib/errors.js')

const dispose = Symbol.dispose ?? Symbol.for('nodejs.dispose')

class MemoryServer {
  #native
  #url

  constructor() {
    if (native.MemoryServer === undefined) {
      const message = 'redlatch/testing needs the native part, and the WebAssembly part is loaded; install the package of the platform, or use a real server'
      throw Object.assign(new Error(message), { code: 'ERR_REDLATCH_NO_BINARY' })
    }
    this.#native = new native.MemoryServer()
    this.#url = unwrap(this.#native.start())
  }

  get url() {
    return this.#url
  }

  advance(by) {
    if (typeof by !== 'number' && typeof by !== 'string') {
      throw new InvalidArgumentError(`by is ${shown(by)}; give a number of milliseconds, or a text like "61s"`)
    }
    unwrap(this.#native.advance(by))
  }

  takeAway(name) {
    if (typeof name !== 'string') throw new InvalidArgumentError(`name is ${shown(name)}; give the name of a lock`)
    return unwrap(this.#native.takeAway(name))
  }

  empty() {
    unwrap(this.#native.empty())
  }

  pause() {
    unwrap(this.#native.pause())
  }

  resume() {
    unwrap(this.#native.resume())
  }

  disconnect() {
    unwrap(this.#native.disconnect())
  }

  close() {
    this.#native.close()
  }

  [dispose]() {
    this.close()
  }

  async [asyncDispose]() {
    this.close()
  }
}

module.exports = { MemoryServer }
