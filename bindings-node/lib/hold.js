'use strict'
const { AsyncLocalStorage } = require('node:async_hooks')
// Not the global one: what tests and browsers put in its place may have no unref(), or never fire.
const { setTimeout } = require('node:timers')
const { inspect } = require('node:util')
const { LockLostError, internal } = require('./errors.js')
const { Failed, answerTo, border, holds, release, resultOf } = require('./border.js')
const { plain } = require('./options.js')
const { Table } = require('./table.js')
const { errorFrom, lostError, unwrap } = internal

// What must outlive the Hold object until the hold is released: whom to tell of a loss. There may be very many.
class State {
  more // a More, once there is more to say than that it is held

  constructor(id, lock) {
    this.id = id
    this.lock = lock
  }

  get loss() {
    return this.more?.loss
  }

  tellLost(reason) {
    if (this.loss !== undefined) return
    const loss = lostError(this.lock.name, reason)
    const more = (this.more ??= new More())
    more.loss = loss
    if (more.controller !== undefined) more.inContext(() => more.controller.abort(loss))
    // Later, because a listener may throw.
    process.nextTick(() => this.lock[emitLost](loss))
  }
}

class More {
  loss // the error, once the hold is lost
  controller
  inContext
}

// A Hold was garbage-collected. If it was neither released nor lost, it ends with its lease.
const collected = new FinalizationRegistry((id) => {
  const state = holds.take(id)
  if (border.abandon(id) !== true || state === undefined || state.loss !== undefined) return
  const hold = `a hold of the lock ${JSON.stringify(state.lock.name)}`
  const text = `${hold} was garbage-collected without release(); it ends with its lease`
  process.emitWarning(text, { type: 'RedlatchWarning', code: 'REDLATCH_ABANDONED' })
})

// Most holds are released soon, and to have one watched by the garbage collector costs as much as all the rest of it:
// those are kept here until they have lived for so many milliseconds.
const CHILDHOOD = 50
const young = new Table()
let growing = false

// Has a hold watched if it is not released before. The timer keeps no event loop alive.
function watchLater(id, hold) {
  young.set(id, hold)
  if (growing) return
  growing = true
  setTimeout(grow, CHILDHOOD).unref()
}

function grow() {
  growing = false
  young.takeAll().forEach(watch)
}

// The state of a Hold; undefined for anything else.
let stateOf
// Has the garbage collector tell of a Hold.
let watch

// What a Lock does when a hold of it is lost.
const emitLost = Symbol('emitLost')

class Hold {
  #state
  #token
  #released

  static {
    stateOf = (value) => (typeof value === 'object' && value !== null && #state in value ? value.#state : undefined)
    // By its number, not with the state: whoever listens to its signal may know the hold, which could never be collected
    // then, released or not.
    watch = (hold) => collected.register(hold, hold.#state.id, hold)
  }

  constructor(id, lock, token) {
    this.#state = new State(id, lock)
    this.#token = token
    holds.set(id, this.#state)
    watchLater(id, this)
  }

  get name() {
    return this.#state.lock.name
  }

  get isHeld() {
    return border.isHeld(this.#state.id)
  }

  get remaining() {
    return border.remaining(this.#state.id)
  }

  get holdCount() {
    return border.holdCount(this.#state.id)
  }

  get fencingToken() {
    return this.#token
  }

  get signal() {
    const more = (this.#state.more ??= new More())
    if (more.controller === undefined) {
      more.controller = new AbortController()
      // The loss is told from outside of every context; whoever listens wants to be in this one.
      more.inContext = AsyncLocalStorage.snapshot()
      if (more.loss !== undefined) more.controller.abort(more.loss)
    }
    return more.controller.signal
  }

  check() {
    if (this.#state.loss !== undefined) throw this.#state.loss
    unwrap(border.check(this.#state.id))
  }

  reenter(options) {
    return this.#state.lock.acquire({ ...options, hold: this })
  }

  async extend(lease) {
    await resultOf(border.extend(this.#state.id, plain('lease', lease)))
  }

  release() {
    return (this.#released ??= this.#release())
  }

  async #release() {
    const state = this.#state
    let answer = answerTo(unwrap(release(state.id)))
    if (answer instanceof Promise) answer = await answer
    holds.take(state.id)
    if (young.take(state.id) === undefined) collected.unregister(this)
    if (!(answer instanceof Failed)) return true
    const error = errorFrom(answer.failure)
    if (error instanceof LockLostError) state.tellLost(answer.failure.reason)
    // A hold that was lost when its client was closed is lost too, although nobody is left to say so.
    if (state.loss === undefined) throw error
    return false
  }

  async [Symbol.asyncDispose]() {
    await this.release()
  }

  [inspect.custom](_, options) {
    const { name, isHeld, holdCount, fencingToken } = this
    return `Hold ${inspect({ name, isHeld, holdCount, fencingToken }, options)}`
  }
}

module.exports = { Hold, emitLost, stateOf }
