'use strict'
// Takes the place of lib/host.js in a browser: all that the package needs of Node.js.

const { inNode } = require('./elsewhere.js')

// The methods of Node's EventEmitter that a program needs. It throws nothing for an 'error' without a listener.
class EventEmitter {
  #listeners = new Map()

  #add(name, listener, method) {
    if (!this.#listeners.has(name)) this.#listeners.set(name, [])
    this.#listeners.get(name)[method](listener)
    return this
  }

  on(name, listener) {
    return this.#add(name, listener, 'push')
  }

  addListener(name, listener) {
    return this.on(name, listener)
  }

  prependListener(name, listener) {
    return this.#add(name, listener, 'unshift')
  }

  once(name, listener) {
    const outer = (...given) => {
      this.off(name, listener)
      listener.apply(this, given)
    }
    outer.listener = listener
    return this.on(name, outer)
  }

  off(name, listener) {
    const all = this.#listeners.get(name) ?? []
    const at = all.findLastIndex((each) => each === listener || each.listener === listener)
    // A copy: an event may be told just now.
    if (at >= 0) this.#listeners.set(name, all.toSpliced(at, 1))
    return this
  }

  removeListener(name, listener) {
    return this.off(name, listener)
  }

  removeAllListeners(name) {
    if (name === undefined) this.#listeners.clear()
    else this.#listeners.delete(name)
    return this
  }

  listeners(name) {
    return (this.#listeners.get(name) ?? []).map((each) => each.listener ?? each)
  }

  listenerCount(name) {
    return this.#listeners.get(name)?.length ?? 0
  }

  emit(name, ...given) {
    const all = this.#listeners.get(name) ?? []
    for (const listener of [...all]) listener.apply(this, given)
    return all.length > 0
  }
}

function inspect(value) {
  return JSON.stringify(value, (_, each) => (typeof each === 'bigint' ? `${each}` : each))
}
inspect.custom = Symbol.for('nodejs.util.inspect.custom')

function addAbortListener(signal, listener) {
  signal.addEventListener('abort', listener, { once: true })
  return { [Symbol.for('nodejs.dispose')]: () => signal.removeEventListener('abort', listener) }
}

// A browser does not know which call belongs to which.
class AsyncLocalStorage {
  static snapshot() {
    return (call) => call()
  }

  getStore() {
    return undefined
  }

  run(_, call) {
    return call()
  }
}

const nothing = () => {}
const channel = () => ({ hasSubscribers: false })
const isIPv6 = (text) => /^[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*$/i.test(text)

module.exports = inNode('../host.js') ?? {
  AsyncLocalStorage,
  EventEmitter,
  TextDecoder,
  TextEncoder,
  addAbortListener,
  diagnostics: { channel, tracingChannel: channel },
  hasContexts: false,
  inspect,
  isIPv6,
  isMainThread: false, // there are no signals to watch
  process: {
    env: {},
    versions: {},
    on: nothing,
    nextTick: (call) => queueMicrotask(call),
    emitWarning: (text, { type, code }) => console.warn(`[${code}] ${type}: ${text}`),
  },
  setMaxListeners: nothing,
  setTimeout: (call, wait) => {
    setTimeout(call, wait)
    return { unref: nothing }
  },
}
