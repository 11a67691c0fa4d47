'use strict'
const { AsyncLocalStorage, inspect, process, setMaxListeners, setTimeout } = require('#host')
const { LockLostError, internal } = require('./errors.js')
const { Failed, answerTo, border, isPerRequest, release, resultOf, whenLost } = require('./border.js')
const { isListenedTo, releasing } = require('./channels.js')
const { asyncDispose } = require('./names.js')
const { plain } = require('./options.js')
const { Table } = require('./table.js')
const { calledFrom, errorFrom, isRefusal, lostAgain, lostError, surfaced, thing, unwrap } = internal

// This outlives the Hold object, by the number of the hold: its lock, as long as there is nothing to say but that it is
// held, or a Story. An entry stays until the hold is released, or is collected and lost. It never refers to the Hold itself,
// which may be garbage-collected. There may be very many.
const holds = new Table()

class Story {
  loss // the error, once the hold is lost
  controller
  inContext
  abandoned = false // the Hold was garbage-collected, and nobody can release it any more

  constructor(lock) {
    this.lock = lock
  }

  tellLost(reason) {
    if (this.loss !== undefined) return
    const loss = lostError(this.lock, reason)
    this.loss = loss
    if (this.controller !== undefined) this.inContext(() => this.controller.abort(loss))
    // Later, because a listener may throw.
    process.nextTick(() => this.lock[emitLost](loss))
  }
}

// The Story of a hold, begun if there is none; undefined if the hold was released.
function storyOf(id) {
  const known = holds.get(id)
  if (known === undefined || known instanceof Story) return known
  const story = new Story(known)
  holds.set(id, story)
  return story
}

whenLost((id, reason) => {
  const story = storyOf(id)
  story?.tellLost(reason)
  if (story?.abandoned) holds.take(id)
})

// A Hold was garbage-collected. If it was neither released nor lost, it is not renewed any more. Its signal may be in use
// still: the Story stays until the lease has ended, and then aborts it. A hold that was released is not taken from the
// registry: that would take half as much memory again for each.
const collected = new FinalizationRegistry((id) => {
  const story = storyOf(id)
  if (story === undefined) return
  if (border.abandon(id) !== true || story.loss !== undefined) return void holds.take(id)
  story.abandoned = true
  const hold = `a hold of the ${story.lock[thing]} ${JSON.stringify(story.lock.name)}`
  const told = story.controller === undefined ? '' : ', which aborts its signal'
  const text = `${hold} was garbage-collected without release(); it ends with its lease${told}`
  process.emitWarning(text, { type: 'RedlatchWarning', code: 'REDLATCH_ABANDONED' })
})

// Most holds are released soon, and to have one watched by the garbage collector costs as much as all the rest of it:
// those are kept here until they have lived for so many milliseconds.
const CHILDHOOD = 50
const young = new Table()
let growing = false

// Has a hold watched if it is not released before. The timer keeps no event loop alive. In a Worker it would end with the request
// that has made it, and leave what others add where it is.
function watchLater(id, hold) {
  if (isPerRequest) return watch(hold)
  young.set(id, hold)
  if (growing) return
  growing = true
  setTimeout(grow, CHILDHOOD).unref()
}

function grow() {
  growing = false
  young.takeAll().forEach(watch)
}

// The knowledge of a Hold; undefined for anything else.
let knownOf
// Has the garbage collector tell of a Hold.
let watch

// A hold serves any number of users at once; of more than ten Node.js would warn as of a leak.
function unlimited(signal) {
  try {
    setMaxListeners(0, signal)
  } catch {
    // Not one of Node's own: jsdom puts others in their place, which have no limit.
  }
}

// Names the method of a Lock that tells of the loss of a hold.
const emitLost = Symbol('emitLost')

class Hold {
  #id
  #known // its lock; its Story once it is released, or has asked for one
  #granted // the fencing token; of a multi lock what each of its locks has
  #released

  static {
    knownOf = (value) => {
      if (typeof value !== 'object' || value === null || !(#id in value)) return undefined
      return { id: value.#id, lock: value.#lock, loss: value.#story?.loss }
    }
    // By its number, not with the story: a listener of its signal may refer to the hold, which could never be collected
    // then, released or not.
    watch = (hold) => collected.register(hold, hold.#id)
  }

  constructor(id, lock, granted) {
    this.#id = id
    this.#known = lock
    this.#granted = granted
    holds.set(id, lock)
    watchLater(id, this)
  }

  get #lock() {
    return this.#known instanceof Story ? this.#known.lock : this.#known
  }

  // Its Story, if there is anything to say of it.
  get #story() {
    const known = this.#known instanceof Story ? this.#known : holds.get(this.#id)
    return known instanceof Story ? known : undefined
  }

  #begunStory() {
    const story = this.#story ?? new Story(this.#lock)
    if (holds.get(this.#id) !== undefined) holds.set(this.#id, story)
    return (this.#known = story)
  }

  get name() {
    return this.#lock.name
  }

  get [thing]() {
    return this.#lock[thing]
  }

  get isHeld() {
    return border.isHeld(this.#id)
  }

  get remaining() {
    return border.remaining(this.#id)
  }

  get holdCount() {
    return border.holdCount(this.#id)
  }

  get owner() {
    return border.owner(this.#id)
  }

  get fencingToken() {
    return typeof this.#granted === 'bigint' ? this.#granted : undefined
  }

  get parts() {
    const { parts } = this.#lock
    if (parts === undefined || !Array.isArray(this.#granted)) return [] // a quorum tells of its servers
    return this.#granted.map(({ owner, fencingToken }, at) => ({ name: parts[at].name, owner, fencingToken }))
  }

  get signal() {
    const story = this.#begunStory()
    if (story.controller === undefined) {
      story.controller = new AbortController()
      unlimited(story.controller.signal)
      // The loss is told from outside of every context; whoever listens wants to be in this one.
      story.inContext = AsyncLocalStorage.snapshot()
      if (story.loss !== undefined) story.controller.abort(story.loss)
    }
    return story.controller.signal
  }

  check() {
    const loss = this.#story?.loss
    if (loss !== undefined) throw lostAgain(loss)
    unwrap(border.check(this.#id))
  }

  async reenter(options) {
    return await this.#lock.acquire({ ...options, hold: this })
  }

  async extend(lease) {
    await resultOf(border.extend(this.#id, plain('lease', lease)))
  }

  release() {
    return (this.#released ??= isListenedTo(releasing)
      ? releasing.tracePromise(() => this.#release(), { hold: this, lockName: this.name })
      : this.#release())
  }

  async #release() {
    const id = this.#id
    const started = release(id)
    // It can be released again, such as by the request of a Worker that it belongs to.
    if (isRefusal(started)) queueMicrotask(() => (this.#released = undefined))
    let answer = answerTo(unwrap(started))
    if (answer instanceof Promise) answer = await answer
    const known = holds.take(id)
    if (known instanceof Story) this.#known = known
    young.take(id)
    if (!(answer instanceof Failed)) return true
    const error = errorFrom(answer.failure)
    if (error instanceof LockLostError) this.#begunStory().tellLost(answer.failure.reason)
    // A hold that was lost when its client was closed is lost too, although nobody is left to say so.
    if (this.#story?.loss === undefined) throw calledFrom(this.#release, error)
    return false
  }

  async [asyncDispose]() {
    await this.release()
  }

  [inspect.custom](_, options) {
    const { name, isHeld, holdCount, fencingToken } = this
    return `Hold ${inspect({ name, isHeld, holdCount, fencingToken }, options)}`
  }
}

surfaced(Hold.prototype, { sync: ['check'], async: ['reenter', 'extend'] })

module.exports = { Hold, emitLost, knownOf }
