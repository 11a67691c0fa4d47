'use strict'
const { EventEmitter, inspect, isMainThread, process } = require('#host')
const { InvalidArgumentError, UnavailableError, internal } = require('./errors.js')
const { border, clients, resultOf, tellEvents } = require('./border.js')
const { Family, Lock, MultiLock, RwLock, Semaphore, anonymous, partOf } = require('./lock.js')
const { events, isListenedTo } = require('./channels.js')
const { CountDownLatch, PlainSemaphore } = require('./counters.js')
const { asyncDispose, statsReader } = require('./names.js')
const { isGiven, plain, shown, split, text } = require('./options.js')
const { PLACE, refuseClient, urlOf } = require('./place.js')
const { calledFrom, surfaced, unwrap } = internal

// The native part has what is held released when a signal ends the process. A signal that the program handles is none of
// its business until the last of those handlers is removed, which puts the default action of the system in place.
let watching = false

// Deno has one handler for a signal, which tells its listeners or, without any, ends the process. `process.on` is made of these
// functions of its own, of which a listener of a worker knows other ones.
const deno = process.versions.deno !== undefined && isMainThread && !border.isWasm ? globalThis.Deno : undefined
if (deno !== undefined) {
  const { addSignalListener: add, removeSignalListener: remove } = deno
  const names = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2']
  const listeners = new Map(names.map((name) => [name, new Set(process.rawListeners(name))]))
  const tell = (name) => listeners.has(name) && border.hears(name, listeners.get(name).size > 0)
  const replaced = Reflect.set(deno, 'addSignalListener', (name, listener) => {
    listeners.get(name)?.add(listener)
    tell(name)
    add(name, listener)
  })
  Reflect.set(deno, 'removeSignalListener', (name, listener) => {
    remove(name, listener)
    listeners.get(name)?.delete(listener)
    tell(name)
  })
  if (replaced) names.forEach(tell)
}

function watchSignals() {
  if (watching || !isMainThread) return
  watching = true
  process.on('removeListener', (name) => {
    if (typeof name === 'string' && name.startsWith('SIG')) border.watchSignals()
  })
  // Bun has no such event for signals.
  for (const name of process.versions.bun === undefined ? [] : ['off', 'removeListener', 'removeAllListeners']) {
    const remove = process[name]
    Reflect.set(process, name, (...given) => {
      remove.apply(process, given)
      border.watchSignals()
      return process
    })
  }
}

const collected = new FinalizationRegistry((id) => clients.delete(id))

// The last two are those of every EventEmitter.
const EVENTS = ['lost', 'event', 'connect', 'error', 'end', 'newListener', 'removeListener']

const statsOf = (native) => Object.fromEntries(unwrap(native.stats()).map(({ name, value }) => [name, value]))

class Client extends EventEmitter {
  #native
  #ended = false
  #latest = new Map() // by kind: a read-write lock has two

  constructor(url, options) {
    super()
    try {
      this.#native = this.#made(url, options)
    } catch (error) {
      throw calledFrom(new.target, error)
    }
    const { id } = this.#native
    clients.set(id, new WeakRef(this))
    watchSignals()
    collected.register(this, id)
  }

  #made(url, options) {
    refuseClient(url)
    if (options === undefined && typeof url === 'object' && url !== null) [url, options] = [undefined, url]
    const { own, names, values } = split(options, [...PLACE, 'connect'])
    const { connect } = own
    if (isGiven(connect) && typeof connect !== 'function') {
      throw new InvalidArgumentError(`connect is ${shown(connect)}; give it a function that returns { readable, writable }`)
    }
    if (isGiven(connect) && !border.isWasm) {
      throw new InvalidArgumentError('connect is given, and the native part has sockets of its own; leave it out, or set REDLATCH_WASM=1 for the WebAssembly part')
    }
    if (isGiven(url)) text('the URL', url)
    // A worker thread has an environment of its own, which the core cannot see.
    else if (!isGiven(own.host) && !isGiven(own.path)) url = process.env.REDLATCH_URL || undefined
    return unwrap(border.client(urlOf(url ?? undefined, own), names, values, connect ?? undefined), [...PLACE, 'connect'])
  }

  static async connect(url, options) {
    const client = new this(url, options)
    try {
      await resultOf(client.#native.ready())
    } catch (error) {
      await client.close()
      throw error
    }
    return client
  }

  lock(name, options) {
    if (options?.kind === 'semaphore') {
      throw new InvalidArgumentError('kind is "semaphore", which is no lock; call client.semaphore(name, { limit })')
    }
    if (Array.isArray(name)) {
      throw new InvalidArgumentError('the lock name is an array; give it a string, or call client.multiLock(names)')
    }
    return new Lock(this.#family(text('the lock name', name), options), name)
  }

  rwLock(name, options) {
    if (options?.kind !== undefined) {
      throw new InvalidArgumentError(`kind is ${shown(options.kind)}; leave it out: a read-write lock has its own`)
    }
    split(options, []) // refuses what is no object
    // A reader draws no fencing token.
    const read = { ...options, kind: 'read', fencing: false, fencingExpires: false }
    return new RwLock(this.lock(name, read), this.lock(name, { ...options, kind: 'write' }))
  }

  multiLock(locks, options) {
    if (!Array.isArray(locks)) {
      throw new InvalidArgumentError(`the locks are ${shown(locks)}; give an array of names and locks: client.multiLock(['a', 'b'])`)
    }
    const { own, names = [] } = split(options, ['context'])
    if (names.length > 0 && locks.length > 0 && !locks.some((given) => typeof given === 'string')) {
      throw new InvalidArgumentError(`${names[0]} is given, and no name that it could be for; give it to client.lock()`)
    }
    const made = locks.map((given) => (typeof given === 'string' ? this.lock(given, options) : given))
    const parts = made.map((lock) => partOf(lock) ?? this.#refusePart(lock))
    const native = this.#native.multiLock(parts.map((part) => part.locks), parts.map((part) => part.name))
    return new MultiLock(new Family(this, unwrap(native), own.context), made)
  }

  #refusePart(given) {
    if (given instanceof RwLock) {
      throw new InvalidArgumentError(`one of the locks is a read-write lock, ${JSON.stringify(given.name)}; give its read or its write`)
    }
    const remedy = 'give names, locks, sides of read-write locks and semaphores'
    throw new InvalidArgumentError(`one of the locks is ${shown(given)}, neither a name nor a lock; ${remedy}`)
  }

  semaphore(name, options) {
    const given = typeof options === 'number' ? { limit: options } : options
    if (given?.kind !== undefined) {
      throw new InvalidArgumentError(`kind is ${shown(given.kind)}; leave it out: a semaphore has its own`)
    }
    split(given, []) // refuses what is no object
    // The client's defaults for its locks mean nothing here.
    const others = { reentrant: null, fencing: null, fencingExpires: null }
    const semaphore = { ...others, ...anonymous(given), kind: 'semaphore' }
    return new Semaphore(this.#family(text('the name of the semaphore', name), semaphore), name)
  }

  plainSemaphore(name) {
    return new PlainSemaphore(this, unwrap(this.#native.plainSemaphore(text('the name of the semaphore', name))), name)
  }

  latch(name) {
    return new CountDownLatch(this, unwrap(this.#native.latch(text('the name of the latch', name))), name)
  }

  // Locks with these options share this; those of the same kind that were given before may have had the same options.
  #family(name, given) {
    const { own, names = [], values = [] } = split(given, ['context'])
    const options = [own.context, ...names, ...values]
    const before = this.#latest.get(given?.kind)
    if (before?.options.length === options.length && before.options.every((each, at) => Object.is(each, options[at]))) {
      unwrap(before.family.locks.name(name))
      return before.family
    }
    const listed = given?.kind === 'semaphore' ? [] : ['context']
    const family = new Family(this, unwrap(this.#native.locks(name, names, values), listed), own.context)
    this.#latest.set(given?.kind, { options, family })
    return family
  }

  on(name, listener) {
    return super.on(this.#known(name), listener)
  }

  addListener(name, listener) {
    return this.on(name, listener)
  }

  prependListener(name, listener) {
    return super.prependListener(this.#known(name), listener)
  }

  // A program that waits for an event that never comes, such as `ready`, waits for ever. A class that extends this one may have
  // events of its own.
  #known(name) {
    if (typeof name === 'symbol' || EVENTS.includes(name) || Object.getPrototypeOf(this) !== Client.prototype) return name
    const known = EVENTS.slice(0, 5).join(', ')
    throw new InvalidArgumentError(`${shown(name)} is no event of a client; there are ${known}. Client.connect() resolves when the server is reached`)
  }

  stats() {
    return statsOf(this.#native)
  }

  [inspect.custom](_, options) {
    const { holds, waiting } = this.stats()
    return `${this.constructor.name} ${inspect({ holds, waiting }, options)}`
  }

  [statsReader]() {
    const native = this.#native
    return () => statsOf(native)
  }

  async close(limit) {
    const left = await resultOf(this.#native.close(limit === undefined ? undefined : plain('the limit', limit)))
    if (!this.#ended) process.nextTick(() => this.emit('end'))
    this.#ended = true
    return left
  }

  async [asyncDispose]() {
    await this.close()
  }

  // The names that clients of Redis have in Node.js. An `error` without a listener would end the program. An event has a text
  // only, neither the kind nor the cause of the error in it.
  #emitAsOthers({ kind, level, text }) {
    if (kind === 'connected') this.emit('connect')
    if (kind === 'disconnected' && level === 'warn' && this.listenerCount('error') > 0) this.emit('error', new UnavailableError(text))
  }

  [tellEvents]() {
    for (const event of unwrap(this.#native.events())) {
      // Later, because a listener may throw.
      process.nextTick(() => {
        this.emit('event', event)
        this.#emitAsOthers(event)
        // Last: a Worker lets nothing be published outside of requests, which is where a hold is found that was forgotten.
        if (isListenedTo(events)) events.publish({ ...event, client: this })
      })
    }
  }
}

surfaced(Client, { async: ['connect'] })
surfaced(Client.prototype, { sync: ['lock', 'rwLock', 'multiLock', 'semaphore', 'plainSemaphore', 'latch', 'on', 'addListener', 'prependListener', 'stats'], async: ['close'] })

module.exports = { Client }
