'use strict'
// The Web Locks API (https://www.w3.org/TR/web-locks/) among processes: each name is a read-write lock, its write side is the
// mode `exclusive`, its read side `shared`. The README says what differs from a browser.

const { createHash, randomUUID } = require('node:crypto')
// Not the global one: what tests put in its place may have no unref(), or never fire.
const { clearTimeout, setTimeout } = require('node:timers')
const { inspect } = require('node:util')
const { Waiting, reasonOf } = require('./lib/border.js')
const { Client } = require('./lib/client.js')
const { LockTimeoutError } = require('./lib/errors.js')
const { emitLost } = require('./lib/hold.js')
const { during, isSignal, steal } = require('./lib/lock.js')
const { shown } = require('./lib/options.js')

const SIDES = { exclusive: 'write', shared: 'read' }

// A process whose lock vanished looks for this mark of a thief, which may have released it already. Without client tracking a
// holder notices the loss within a third of its lease. The mark stays when the program ends.
const MARK = { lease: '60s', linger: true }
const MARKED = 45_000

// Redis has a limit for names, and takes no half of a surrogate pair.
const LONGEST = 256

// An owner in Redis is `<uuid>:<number>`, and each hold has a last group of the uuid of its own.
const clientOf = (owner) => owner.slice(0, owner.lastIndexOf('-'))

// All requests that hold a lock. A callback that never ends may be collected as garbage; its lock has to stay.
const held = new Set()

const keyOf = (prefix, name) => {
  if (name.length <= LONGEST && name.isWellFormed()) return `${prefix}:${name}`
  return `${prefix}-sha256:${createHash('sha256').update(name, 'utf16le').digest('hex')}`
}

const refused = (text) => new DOMException(text, 'NotSupportedError')

// Members are read in the order of their names, and converted, as WebIDL has it for a dictionary.
function optionsOf(given) {
  if (given !== null && !['undefined', 'object', 'function'].includes(typeof given)) {
    throw new TypeError(`the options are ${shown(given)}; give an object`)
  }
  const { ifAvailable, mode: givenMode = 'exclusive', signal, steal } = given ?? {}
  const mode = `${givenMode}`
  if (!Object.hasOwn(SIDES, mode)) throw new TypeError(`mode is ${shown(mode)}; give "exclusive" or "shared"`)
  if (signal !== undefined && !isSignal(signal)) throw new TypeError(`signal is ${shown(signal)}; give an AbortSignal`)
  return { ifAvailable: Boolean(ifAvailable), mode, signal, steal: Boolean(steal) }
}

function checkOptions(name, { ifAvailable, mode, signal, steal }) {
  if (name.startsWith('-')) throw refused(`the name ${shown(name)} begins with "-"; such names are reserved`)
  if (steal && ifAvailable) throw refused('steal and ifAvailable are given; give one of them')
  if (steal && mode !== 'exclusive') throw refused('steal and the mode "shared" are given; only an exclusive lock is stolen')
  if (signal === undefined) return
  if (steal || ifAvailable) throw refused(`signal and ${steal ? 'steal' : 'ifAvailable'} are given; such a request does not wait`)
  if (signal.aborted) throw reasonOf(signal)
}

class Lock {
  #name
  #mode
  #signal

  constructor(request, signal) {
    if (!(request instanceof Request)) throw new TypeError('a lock is made by request() only')
    this.#name = request.name
    this.#mode = request.mode
    this.#signal = signal
  }

  get name() {
    return this.#name
  }

  get mode() {
    return this.#mode
  }

  get signal() {
    return this.#signal
  }

  get [Symbol.toStringTag]() {
    return 'Lock'
  }

  [inspect.custom](_, options) {
    return `Lock ${inspect({ name: this.#name, mode: this.#mode }, options)}`
  }
}

class Request {
  attempt // of the lock's acquisition that is under way; aborted when the caller gives up
  hold

  constructor(manager, name, options, callback) {
    Object.assign(this, { manager, name, callback }, options)
    this.promise = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }))
  }

  get side() {
    return this.lock[SIDES[this.mode]]
  }

  stop() {
    const { attempt } = this
    this.attempt = undefined
    attempt?.abort()
  }

  call(lock) {
    const { callback } = this
    return callback(lock)
  }
}

const OWN = Symbol('own')

class LockManager {
  #open
  #client
  #clientId
  #pending = new Set() // requests that wait, in their order
  #thefts = new Map() // by name: the last theft that is under way
  #marks = new Map() // by name: what takes the mark away

  constructor(own, open) {
    if (own !== OWN) throw new TypeError('a LockManager is made by locksOf(client) only')
    this.#open = open
  }

  async request(name, options, ...rest) {
    if (arguments.length < 2) throw new TypeError(`request() got ${arguments.length} arguments; give it a name and a function`)
    const [given, callback] = rest.length > 0 ? [options, rest[0]] : [undefined, options]
    const text = `${name}`
    const checked = optionsOf(given)
    if (typeof callback !== 'function') throw new TypeError(`the callback is ${shown(callback)}; give a function`)
    checkOptions(text, checked)
    const request = new Request(this, text, checked, callback)
    request.lock = this.#lock(text)
    if (checked.ifAvailable) this.#tryOnce(request)
    else this.#enqueue(request)
    return request.promise
  }

  async query({ names = [] } = {}) {
    if (typeof names === 'string') throw new TypeError(`names is ${shown(names)}; give a list`)
    const known = new Set([...this.#ownHeld(), ...this.#pending].map(({ name }) => name))
    for (const name of names) known.add(`${name}`)
    const [clientId, ...all] = await Promise.all([this.#ownId(), ...Array.from(known, (name) => this.#holders(name))])
    const own = ({ name, mode }) => ({ name, mode, clientId })
    // This process knows its own locks better than the answers, which are older.
    const others = all.flat().filter((info) => info.clientId !== clientId)
    return { held: [...this.#ownHeld().map(own), ...others], pending: Array.from(this.#pending, own) }
  }

  #lock(name, prefix = 'web-locks', options) {
    this.#client ??= this.#open()
    return this.#client.rwLock(keyOf(prefix, name), options)
  }

  #ownHeld() {
    return [...held].filter(({ manager }) => manager === this)
  }

  async #holders(name) {
    const lock = this.#lock(name)
    const asked = Object.entries(SIDES).map(async ([mode, side]) => {
      const owners = await lock[side].holders()
      return owners.map(({ owner }) => ({ name, mode, clientId: clientOf(owner) }))
    })
    return (await Promise.all(asked)).flat()
  }

  // The client's part of the owners that Redis shows. The client does not tell it; a lock of its own does.
  #ownId() {
    this.#clientId ??= this.#learnId().catch((error) => {
      this.#clientId = undefined
      throw error
    })
    return this.#clientId
  }

  async #learnId() {
    const { write } = this.#lock(randomUUID(), 'web-locks-client')
    const { owner } = await write.using(() => write.holder())
    return clientOf(owner)
  }

  // --- requests ---

  async #tryOnce(request) {
    const { name } = request
    try {
      const hold = await (this.#thefts.has(name) ? null : request.side.tryAcquire())
      if (hold !== null) return this.#granted(request, hold)
      request.resolve(await request.call(null))
    } catch (error) {
      request.reject(error)
    }
  }

  #enqueue(request) {
    const { name, signal, steal } = request
    this.#pending.add(request)
    if (signal !== undefined) {
      request.giveUp = () => this.#failed(request, reasonOf(signal))
      Waiting.of(signal).add(request.giveUp)
    }
    if (steal) this.#steal(request)
    else if (!this.#thefts.has(name)) this.#begin(request)
  }

  // The client serves its callers in their order: a reader does not pass a writer that waits.
  #begin(request) {
    const attempt = new AbortController()
    request.attempt = attempt
    request.side.acquire({ signal: attempt.signal }).then(
      (hold) => {
        if (request.attempt === attempt) this.#granted(request, hold)
        else hold.release().catch(() => false)
      },
      (error) => {
        if (request.attempt === attempt) this.#failed(request, error)
      },
    )
  }

  #leave(request) {
    this.#pending.delete(request)
    if (request.giveUp !== undefined) Waiting.of(request.signal).delete(request.giveUp)
  }

  #failed(request, error) {
    this.#leave(request)
    request.stop()
    request.reject(error)
  }

  #granted(request, hold) {
    this.#leave(request)
    request.attempt = undefined
    request.hold = hold
    held.add(request)
    const { signal } = hold
    let ended = false
    const lost = async () => {
      held.delete(request)
      if (!ended) request.reject(await this.#toldAs(request, signal.reason))
    }
    signal.addEventListener('abort', lost, { once: true })
    const call = async () => {
      try {
        return await request.call(new Lock(request, signal))
      } finally {
        ended = true
      }
    }
    during(hold, call, (loss) => loss)
      .finally(() => held.delete(request))
      .then(request.resolve, async (error) => request.reject(error === signal.reason ? await this.#toldAs(request, error) : error))
  }

  // --- theft ---

  // Later requests begin when it is over: they would be robbed if they came before it.
  #steal(request) {
    const { name } = request
    const theft = (this.#thefts.get(name) ?? Promise.resolve()).then(() => this.#rob(request))
    this.#thefts.set(name, theft)
    theft.then(() => {
      if (this.#thefts.get(name) !== theft) return
      this.#thefts.delete(name)
      for (const other of this.#pending) if (other.name === name && other.attempt === undefined) this.#begin(other)
    })
  }

  async #rob(request) {
    try {
      await this.#mark(request.name)
      this.#granted(request, await request.lock.write[steal]())
    } catch (error) {
      this.#failed(request, error)
    }
  }

  #markOf(name) {
    const { read } = this.#lock(name, 'web-locks-stolen', MARK)
    read[emitLost] = () => {} // a client that is closed leaves it behind, of which nobody has to hear
    return read
  }

  async #mark(name) {
    const hold = await this.#markOf(name).acquire()
    const remove = () => {
      clearTimeout(timer)
      if (this.#marks.get(name) === remove) this.#marks.delete(name)
      hold.release().catch(() => false)
    }
    const timer = setTimeout(remove, MARKED).unref()
    this.#marks.get(name)?.()
    this.#marks.set(name, remove)
  }

  // The error of a request that has lost its lock.
  async #toldAs({ name }, loss) {
    const { reason } = loss
    const stolen =
      ['forced', 'stolen'].includes(reason) || (reason === 'deleted' && (await this.#markOf(name).isLocked().catch(() => false)))
    return stolen ? new DOMException(`the lock ${shown(name)} was stolen`, { name: 'AbortError', cause: loss }) : loss
  }

  get [Symbol.toStringTag]() {
    return 'LockManager'
  }
}

const managers = new WeakMap()

function locksOf(client) {
  if (!(client instanceof Client)) throw new TypeError(`the client is ${shown(client)}; give a Client of redlatch`)
  if (!managers.has(client)) managers.set(client, new LockManager(OWN, () => client))
  return managers.get(client)
}

// Opened by the first request, with REDLATCH_URL.
const locks = new LockManager(OWN, () => new Client())

module.exports = { LockManager, Lock, locks, locksOf }
