'use strict'
const { AsyncLocalStorage, hasContexts, inspect } = require('#host')
const { InvalidArgumentError, LockLostError, LockTimeoutError } = require('./errors.js')
const { answerTo, border, numberOf, reasonOf, resultOf, valueOf } = require('./border.js')
const { acquiring, isListenedTo } = require('./channels.js')
const { Hold, emitLost, knownOf } = require('./hold.js')
const { plain, shown, split, text } = require('./options.js')
const { calledFrom, keptAsGiven, lostAgain, surfaced, thing, unwrap } = require('./errors.js').internal

const OWN = ['signal', 'key', 'hold', 'context']

// Names the method of a Lock for Web Locks.
const steal = Symbol('steal')

// The contexts of locks that are re-entered by context: every using() adds a link to the chain of the one around it, and all
// links have one number for the owner. The number is valid while any using() of the chain goes on: an inner one may end
// after the outer one. A timer, a pool or the consumer of a queue that was begun inside and goes on after all of them keeps
// the context; calls that it makes later have nothing in common, and must exclude each other.
const contexts = new AsyncLocalStorage()

// The innermost link that has not ended.
function liveLink(link) {
  while (link?.ended) link = link.outer
  return link
}

function currentContext() {
  return liveLink(contexts.getStore())
}

// The locks of a client that have the same options share this; there may be very many of them.
class Family {
  constructor(client, locks, context = false) {
    this.client = client
    this.locks = locks
    this.acquire = locks.acquire() // without options, or with how long to wait
    this.context = flag('context', context)
    if (this.context && !hasContexts) {
      throw new InvalidArgumentError('context is true, and a browser does not know which calls belong together; leave it out, and give key or hold')
    }
  }
}

// Gives the native part and the name of a Lock or a Semaphore that a multi lock is made of; undefined for anything else.
let partOf

class Lock {
  #family
  #name

  static {
    partOf = (value) => {
      if (value instanceof Semaphore) return partOf(lockOf(value))
      if (typeof value !== 'object' || value === null || !(#family in value)) return undefined
      return { locks: value.#family.locks, name: value.#name }
    }
  }

  constructor(family, name) {
    this.#family = family
    this.#name = name
  }

  get name() {
    return unwrap(this.#family.locks.name(this.#name))
  }

  acquire(options) {
    if (!isListenedTo(acquiring)) return this.#acquire(options, this.acquire)
    return this.#traced(() => this.#acquire(options, this.acquire))
  }

  adopt(token, options) {
    return this.#traced(() => this.#acquire(options, this.adopt, { token }))
  }

  #traced(acquire) {
    if (!isListenedTo(acquiring)) return acquire()
    const { client } = this.#family
    return acquiring.tracePromise(acquire, { client, lockName: this.name })
  }

  // `above`: the method that the program called. `adopted`: has the token of a lock to take over.
  async #acquire(options, above, adopted) {
    let signal
    let hold
    let waited = false
    try {
      const { own, names, values } = split(options, OWN)
      signal = own.signal
      checkSignal(signal)
      if (signal?.aborted) throw reasonOf(signal)
      const started = unwrap(this.#start(own, names, values, adopted), OWN)
      let answer = answerTo(started, signal)
      // The caller may abort its signal in the tick of the call, which is later than an answer that is here.
      if (signal !== undefined || answer instanceof Promise) {
        waited = true
        answer = await answer
      }
      const granted = valueOf(answer)
      hold = new Hold(numberOf(started), this, granted ?? undefined)
    } catch (error) {
      // `above` does not await: while this does, it is the innermost function that the program waits for.
      throw calledFrom(waited ? this.#acquire : above, error, this)
    }
    if (!signal?.aborted) return hold
    // Granted at once, and aborted before the caller could know. A release that fails goes on by itself.
    await hold.release().catch(() => false)
    throw reasonOf(signal)
  }

  #start(own, names, values, adopted) {
    if (adopted !== undefined) {
      refuseOwners(own, 'an adopted lock gets a hold of its own')
      return this.#family.locks.adopt(this.#name, text('the token', adopted.token), names, values)
    }
    const { key, hold, context = this.#family.context } = own
    if (hold === undefined) {
      const number = flag('context', context) ? currentContext()?.number : undefined
      if (key === undefined && number === undefined) {
        if (!names?.length) return this.#family.acquire(this.#name)
        if (isWaitAlone(names, values)) return this.#family.acquire(this.#name, values[0])
      }
      return this.#family.locks.acquireWith(this.#name, keyOf(key), number, names, values)
    }
    if (key !== undefined) throw new InvalidArgumentError('key and hold are given; give one of them')
    const known = knownOf(hold)
    const isOfThis = known?.lock[thing] === this[thing] && known.lock.name === this.name
    if (!isOfThis || known.lock.#family.client !== this.#family.client) {
      const given = known === undefined ? shown(hold) : `one of the ${known.lock[thing]} ${JSON.stringify(known.lock.name)}`
      throw new InvalidArgumentError(`hold is ${given}; give it a Hold of this lock and this client`)
    }
    return this.#family.locks.reenter(known.id, names, values)
  }

  async tryAcquire(options) {
    if (options?.wait !== undefined) {
      const text = 'tryAcquire() does not wait; call acquire() with it, or leave it out'
      throw new InvalidArgumentError(`wait is ${shown(options.wait)}: ${text}`)
    }
    // A lock that others have is an answer, to those who listen to the channels as well.
    const acquire = async () => {
      try {
        return await this.#acquire({ ...options, wait: 0 }, this.#acquire)
      } catch (error) {
        if (error instanceof LockTimeoutError) return null
        throw error
      }
    }
    return await this.#traced(acquire)
  }

  async using(options, fn) {
    if (fn === undefined && typeof options === 'function') [options, fn] = [undefined, options]
    if (typeof fn !== 'function') {
      const given = typeof options === 'function' ? 'the function first; write using(options, fn)' : `${shown(fn ?? options)}; give it a function`
      throw new InvalidArgumentError(`using() got ${given}`)
    }
    const context = options?.context ?? this.#family.context // checked by acquire
    if (context) {
      refuseOwners({ key: options?.key, hold: options?.hold }, 'context is true, and the calls inside have another owner, which would wait for it')
    }
    // Each of these awaits what it returns, or the stacks of errors would not reach the line of the program.
    const locked = async () => await during(await this.acquire(options), fn, lostAgain)
    if (!context) return await locked()
    const outer = currentContext()
    const own = { number: outer?.number ?? border.newContext(), outer, ended: false }
    try {
      return await contexts.run(own, locked)
    } finally {
      own.ended = true
      // A chain of using() calls that each begin the next one and end must not keep all of them.
      own.outer = liveLink(outer)
    }
  }

  async isLocked() {
    return (await resultOf(this.#family.locks.owners(this.#name))).length > 0
  }

  async holder() {
    return (await this.holders())[0] ?? null
  }

  holders() {
    return resultOf(this.#family.locks.holders(this.#name))
  }

  waiters() {
    return resultOf(this.#family.locks.waiters(this.#name))
  }

  async releaseToken(token) {
    await resultOf(this.#family.locks.releaseToken(this.#name, text('the token', token)))
  }

  async extendToken(token, lease) {
    await resultOf(this.#family.locks.extendToken(this.#name, text('the token', token), plain('lease', lease)))
  }

  forceRelease() {
    return resultOf(this.#family.locks.forceRelease(this.#name))
  }

  // Takes a write side from all that have the lock, before all that wait.
  async [steal]() {
    const started = unwrap(this.#family.locks.steal(this.#name))
    const token = valueOf(await answerTo(started))
    return new Hold(numberOf(started), this, token ?? undefined)
  }

  [emitLost](loss) {
    this.#family.client.emit('lost', loss)
  }

  [inspect.custom](_, options) {
    return `Lock ${inspect({ name: this.name }, options)}`
  }
}

// Several locks as one: the native part of `family` is made of `locks`.
class MultiLock extends Lock {
  #parts

  constructor(family, locks) {
    super(family, unwrap(family.locks.name('')))
    const given = new Map(locks.flatMap((lock) => lock.parts ?? [lock]).map((lock) => [lock.name, lock]))
    this.#parts = Object.freeze(family.locks.parts().map((name) => given.get(name)))
  }

  get parts() {
    return this.#parts
  }

  [inspect.custom](_, options) {
    return `MultiLock ${inspect({ name: this.name }, options)}`
  }
}

class RwLock {
  constructor(read, write) {
    this.read = read
    this.write = write
    Object.freeze(this)
  }

  get name() {
    return this.write.name
  }

  [inspect.custom](_, options) {
    return `RwLock ${inspect({ name: this.name }, options)}`
  }
}

// The lock that a semaphore is inside.
class Permits extends Lock {}

// The lock inside a Semaphore.
let lockOf

class Semaphore {
  #locks
  #name
  #lock

  static {
    lockOf = (semaphore) => semaphore.#lock
  }

  constructor(family, name) {
    this.#locks = family.locks
    this.#name = name
    this.#lock = new Permits(family, name)
  }

  get name() {
    return this.#lock.name
  }

  async acquire(options) {
    return await this.#lock.acquire(anonymous(options))
  }

  async tryAcquire(options) {
    return await this.#lock.tryAcquire(anonymous(options))
  }

  async using(options, fn) {
    return await this.#lock.using(anonymous(options), fn)
  }

  permits() {
    return resultOf(this.#locks.permits(this.#name))
  }

  async setPermits(limit) {
    if (typeof limit !== 'number') throw new InvalidArgumentError(`limit is ${shown(limit)}; give it a number`)
    return resultOf(this.#locks.permits(this.#name, limit))
  }

  holders() {
    return this.#lock.holders()
  }

  waiters() {
    return this.#lock.waiters()
  }

  forceRelease() {
    return this.#lock.forceRelease()
  }

  [inspect.custom](_, options) {
    return `Semaphore ${inspect({ name: this.name }, options)}`
  }
}

// Options that name no owner: permits belong to a Hold.
function anonymous(options) {
  refuseOwners(options, 'each acquisition of a semaphore takes permits of its own')
  return options
}

function refuseOwners(options, why) {
  for (const name of ['key', 'hold', 'context']) {
    const value = options?.[name]
    if (value === undefined) continue
    throw new InvalidArgumentError(`${name} is ${shown(value)}; leave it out: ${why}`)
  }
}

// Runs a function and then releases the hold; rejects if it was lost, with what `lost` makes of the reason of its signal. Permits of
// a plain semaphore cannot be lost, and their release resolves to nothing.
async function during(hold, fn, lost) {
  let result
  try {
    result = await fn(hold)
  } catch (error) {
    await releaseAfter(error, hold)
    throw keptAsGiven(error)
  }
  if ((await hold.release()) !== false) return result
  throw lost(knownOf(hold).loss)
}

// The error of the function comes first; that the hold was lost, or not released, is told as its cause.
async function releaseAfter(error, hold) {
  let cause
  try {
    if ((await hold.release()) !== false) return
    cause = knownOf(hold).loss
  } catch (failure) {
    cause = failure
  }
  if (error === cause || (error instanceof LockLostError && error.lockName === hold.name)) return // told already
  if (error instanceof Error && error.cause === undefined && Object.isExtensible(error)) {
    Object.defineProperty(error, 'cause', { value: cause, configurable: true, writable: true })
  }
}

Lock.prototype[thing] = 'lock'
MultiLock.prototype[thing] = 'multi lock'
Permits.prototype[thing] = Semaphore.prototype[thing] = 'semaphore'

surfaced(Lock.prototype, { async: ['tryAcquire', 'using', 'isLocked', 'holder', 'holders', 'waiters', 'releaseToken', 'extendToken', 'forceRelease'] })
surfaced(Semaphore.prototype, { async: ['acquire', 'tryAcquire', 'using', 'permits', 'setPermits', 'holders', 'waiters', 'forceRelease'] })

// The option that is given most has a way of its own: to take lists of options over the border is a tenth of a pair.
function isWaitAlone(names, values) {
  return names.length === 1 && names[0] === 'wait' && typeof values[0] === 'number'
}

function checkSignal(signal) {
  if (signal === undefined || isSignal(signal)) return
  throw new InvalidArgumentError(`signal is ${shown(signal)}; give it an AbortSignal`)
}

// Not by its class: jsdom puts another one in the place of Node's own.
const isSignal = (value) => typeof value?.aborted === 'boolean' && typeof value.addEventListener === 'function'

// A key as 64 bits without a sign.
function keyOf(key) {
  if (key === undefined) return key
  const whole = Number.isSafeInteger(key) ? BigInt(key) : key
  if (typeof whole === 'bigint' && BigInt.asUintN(64, whole) === whole) return whole
  throw new InvalidArgumentError(`key is ${shown(key)}; give it a whole number of 64 bits that is not negative`)
}

function flag(name, value) {
  if (typeof value === 'boolean') return value
  throw new InvalidArgumentError(`${name} is ${shown(value)}; give it true or false`)
}

module.exports = {
  Family,
  Lock,
  MultiLock,
  RwLock,
  Semaphore,
  anonymous,
  checkSignal,
  during,
  isSignal,
  partOf,
  steal,
}
