'use strict'
const { AsyncLocalStorage } = require('node:async_hooks')
const { inspect } = require('node:util')
const { LockLostError, internal } = require('./errors.js')
const { Failed, answerTo, border, holds, resultOf } = require('./border.js')
const { plain } = require('./options.js')
const { errorFrom, lostError, unwrap } = internal

// What must outlive the Hold object until the hold is released: whom to tell of a loss.
class State {
  loss // the error, once the hold is lost
  controller
  inContext
  released

  constructor(id, lock, client) {
    this.ticket = { id, lock, lost: false }
    this.id = id
    this.lock = lock
    this.client = client
  }

  tellLost(reason) {
    if (this.loss !== undefined) return
    this.loss = lostError(this.lock.name, reason)
    this.ticket.lost = true
    if (this.controller !== undefined) this.inContext(() => this.controller.abort(this.loss))
    // Later, because a listener may throw.
    process.nextTick(() => this.client.emit('lost', this.loss))
  }
}

// A Hold was garbage-collected. If it was neither released nor lost, it ends with its lease.
const collected = new FinalizationRegistry(({ id, lock, lost }) => {
  holds.delete(id)
  if (border.abandon(id) !== true || lost) return
  const hold = `a hold of the lock ${JSON.stringify(lock.name)}`
  const text = `${hold} was garbage-collected without release(); it ends with its lease`
  process.emitWarning(text, { type: 'RedlatchWarning', code: 'REDLATCH_ABANDONED' })
})

// The state of a Hold; undefined for anything else.
let stateOf

class Hold {
  #state
  #token

  static {
    stateOf = (value) => (typeof value === 'object' && value !== null && #state in value ? value.#state : undefined)
  }

  constructor(id, lock, client, token) {
    this.#state = new State(id, lock, client)
    this.#token = token
    holds.set(id, this.#state)
    // Not the state: whoever listens to its signal may know the hold, which could never be collected then.
    collected.register(this, this.#state.ticket, this.#state.ticket)
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
    const state = this.#state
    if (state.controller === undefined) {
      state.controller = new AbortController()
      // The loss is told from outside of every context; whoever listens wants to be in this one.
      state.inContext = AsyncLocalStorage.snapshot()
      if (state.loss !== undefined) state.controller.abort(state.loss)
    }
    return state.controller.signal
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
    return (this.#state.released ??= this.#release())
  }

  async #release() {
    const state = this.#state
    let answer = answerTo(unwrap(border.release(state.id)))
    if (answer instanceof Promise) answer = await answer
    holds.delete(state.id)
    collected.unregister(state.ticket)
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

module.exports = { Hold, stateOf }
