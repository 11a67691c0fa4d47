'use strict'
// Plain semaphores and count-down latches: numbers without owners.

const { inspect } = require('#host')
const { InvalidArgumentError, LockTimeoutError, internal } = require('./errors.js')
const { reasonOf, resultOf } = require('./border.js')
const { checkSignal, during } = require('./lock.js')
const { asyncDispose } = require('./names.js')
const { isGiven, plain, shown, split } = require('./options.js')
const { isRefusal, surfaced, thing } = internal

// Permits that were taken together. Redis does not know this object. Its release adds the number of its permits.
class PlainPermit {
  #semaphore
  #permits
  #released

  constructor(semaphore, permits) {
    this.#semaphore = semaphore
    this.#permits = permits
  }

  get name() {
    return this.#semaphore.name
  }

  get permits() {
    return this.#permits
  }

  release() {
    return (this.#released ??= this.#release())
  }

  async #release() {
    const started = nativeOf(this.#semaphore).release(this.#permits)
    // It can be released again, such as by the request of a Worker that it belongs to.
    if (isRefusal(started)) queueMicrotask(() => (this.#released = undefined))
    await resultOf(started)
  }

  async [asyncDispose]() {
    await this.release()
  }

  [inspect.custom](_, options) {
    const { name, permits } = this
    return `PlainPermit ${inspect({ name, permits }, options)}`
  }
}

// The native part of a counter.
let nativeOf

class Counter {
  // The client stays alive as long as this object, so its listeners hear of events.
  #client
  #native
  #name

  static {
    nativeOf = (counter) => counter.#native
  }

  constructor(client, native, name) {
    this.#client = client
    this.#native = native
    this.#name = name
  }

  get name() {
    return this.#name
  }

  [inspect.custom](_, options) {
    return `${this.constructor.name} ${inspect({ name: this.name }, options)}`
  }
}

class PlainSemaphore extends Counter {
  async acquire(permits = 1, options) {
    const { signal, wait } = waitOf(options)
    await resultOf(nativeOf(this).take(natural('permits', permits), wait), signal)
    const permit = new PlainPermit(this, permits)
    if (!signal?.aborted) return permit
    // Taken at once, and aborted before the caller could know. A release that fails goes on by itself.
    await permit.release().catch(() => undefined)
    throw reasonOf(signal)
  }

  async tryAcquire(permits = 1) {
    try {
      return await this.acquire(permits, { wait: 0 })
    } catch (error) {
      if (error instanceof LockTimeoutError) return null
      throw error
    }
  }

  // How many permits, and how long to wait, may be left out.
  async using(...given) {
    const fn = given.pop()
    if (typeof fn !== 'function') throw new InvalidArgumentError(`using() got ${shown(fn)}; give it a function`)
    return await during(await this.acquire(...given), fn)
  }

  async release(permits = 1) {
    await resultOf(nativeOf(this).release(natural('permits', permits)))
  }

  async trySetPermits(permits) {
    return resultOf(nativeOf(this).trySetPermits(natural('permits', permits)))
  }

  async addPermits(permits) {
    return resultOf(nativeOf(this).addPermits(whole('permits', permits)))
  }

  async drain() {
    return resultOf(nativeOf(this).drain())
  }

  async available() {
    return resultOf(nativeOf(this).available())
  }
}

class CountDownLatch extends Counter {
  async trySetCount(count) {
    return resultOf(nativeOf(this).trySetCount(natural('count', count)))
  }

  async countDown(by = 1) {
    return resultOf(nativeOf(this).countDown(natural('by', by)))
  }

  async count() {
    return resultOf(nativeOf(this).count())
  }

  async wait(options) {
    const { signal, wait } = waitOf(options)
    await resultOf(nativeOf(this).wait(wait), signal)
  }
}

// How long to wait, for the core, and the signal that ends the wait. Throws if that is aborted already.
function waitOf(options) {
  const { own, names = [] } = split(options, ['wait', 'signal'])
  if (names.length > 0) throw new InvalidArgumentError(`${shown(names[0])} is no option of this call; there are wait and signal`)
  checkSignal(own.signal)
  if (own.signal?.aborted) throw reasonOf(own.signal)
  return { signal: own.signal, wait: isGiven(own.wait) ? plain('wait', own.wait) : undefined }
}

function whole(what, number) {
  if (Number.isSafeInteger(number)) return number
  throw new InvalidArgumentError(`${what} is ${shown(number)}; give it a whole number`)
}

// The core checks the upper bound. Its type cannot hold a negative number.
function natural(what, number) {
  if (whole(what, number) >= 0) return number
  throw new InvalidArgumentError(`${what} is ${number}; give it a whole number that is not negative`)
}

PlainPermit.prototype[thing] = PlainSemaphore.prototype[thing] = 'semaphore'
CountDownLatch.prototype[thing] = 'latch'

surfaced(PlainPermit.prototype, { async: ['release'] })
surfaced(PlainSemaphore.prototype, { async: ['acquire', 'tryAcquire', 'using', 'release', 'trySetPermits', 'addPermits', 'drain', 'available'] })
surfaced(CountDownLatch.prototype, { async: ['trySetCount', 'countDown', 'count', 'wait'] })

module.exports = { CountDownLatch, PlainPermit, PlainSemaphore }
