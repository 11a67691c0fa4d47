'use strict'
// The promises that wait for the native part. One of these per environment: the main thread, each worker.

const { addAbortListener, process } = require('#host')
const native = require('#native')
const { errorFrom, keptAsGiven, unwrap } = require('./errors.js').internal
const { Table } = require('./table.js')

// By the number of the call: what takes its answer.
const calls = new Table()
// By the number of the client: a weak reference to it.
const clients = new Map()

// Takes the number of a hold that is lost, and that of the reason.
let tellLost

function whenLost(tell) {
  tellLost = tell
}

const border = new native.Border(drain)
// Bun calls no hook of a native part, nor the handlers of C's exit(), after process.exit(); Node.js on Windows neither. Deno calls
// none when a program has nothing more to do. The WebAssembly part has no hook at all.
if (native.isWasm || process.platform === 'win32' || ['bun', 'deno'].some((name) => process.versions[name] !== undefined)) {
  process.on('exit', () => border.end())
}
const takeAll = border.drain()
const release = border.release()

// Called by the native part. Nothing in here may throw: the rest of the batch would be lost.
function drain() {
  const batch = unwrap(takeAll())
  // Mostly one call is answered, and there is nothing to tell.
  if (typeof batch === 'number') return settle(-batch, null)
  const { done, failed = [], lost = [], eventful = [] } = batch
  for (let at = 0; at < done.length; at += 1) {
    const id = done[at]
    if (id < 0) settle(-id, null)
    else settle(id, done[(at += 1)])
  }
  for (let at = 0; at < failed.length; at += 2) settle(failed[at], new Failed(failed[at + 1]))
  for (let at = 0; at < lost.length; at += 2) tellLost(lost[at], lost[at + 1])
  for (const id of eventful) clients.get(id)?.deref()?.[tellEvents]()
}

const tellEvents = Symbol('tellEvents')

class Failed {
  constructor(failure) {
    this.failure = failure
  }
}

function settle(id, answer) {
  calls.take(id)?.(answer)
}

// The result of a native call, `started`, is one of
// - the number of the call, if the answer comes later,
// - the number with a minus, if it is done and there is nothing to tell,
// - the answer, in an object as `drain` has them.
const numberOf = (started) => (typeof started === 'number' ? Math.abs(started) : started.done[0])

function atOnce(started) {
  if (typeof started === 'number') return started < 0 ? null : undefined
  return started.failed ? new Failed(started.failed[1]) : started.done[1]
}

// The answer to a call, be it a Failed: itself, or a promise of it. Once `signal` is aborted the call is cancelled,
// and what it may have won meanwhile is released.
function answerTo(started, signal) {
  const answer = atOnce(started)
  if (answer !== undefined) return answer
  if (signal !== undefined) return answerUntil(started, signal)
  return new Promise((resolve) => calls.set(started, resolve))
}

function answerUntil(id, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      border.cancel(id)
      calls.take(id)
      reject(reasonOf(signal))
    }
    const waiting = Waiting.of(signal)
    waiting.add(abort)
    calls.set(id, (answer) => {
      waiting.delete(abort)
      resolve(answer)
    })
  })
}

// The calls that a signal would end have one listener together: of more than ten Node.js warns as of a leak.
class Waiting {
  static #all = new WeakMap()
  #signal
  #calls = new Set()
  #listening

  static of(signal) {
    let waiting = Waiting.#all.get(signal)
    if (waiting === undefined) Waiting.#all.set(signal, (waiting = new Waiting(signal)))
    return waiting
  }

  constructor(signal) {
    this.#signal = signal
  }

  add(abort) {
    // A listener like any other would not be called behind one that stops the event.
    if (this.#calls.size === 0) this.#listening = addAbortListener(this.#signal, this.#abort)
    this.#calls.add(abort)
  }

  delete(abort) {
    this.#calls.delete(abort)
    if (this.#calls.size > 0) return
    // Its only method is named by Node's own Symbol.dispose. On Node.js 20 and 22 the Symbol of another context, as Jest
    // and Vitest make them by node:vm, has no such property or a polyfill's.
    const [dispose] = Object.getOwnPropertySymbols(this.#listening)
    this.#listening[dispose]()
  }

  #abort = () => {
    for (const abort of this.#calls) {
      this.delete(abort)
      abort()
    }
  }
}

// Why a signal was aborted. Signals of older packages do not say.
function reasonOf(signal) {
  return signal.reason === undefined ? new DOMException('This operation was aborted', 'AbortError') : keptAsGiven(signal.reason)
}

// The value of an answer. To be called in an async function after the wait, so that the stack shows who waits.
function valueOf(answer) {
  if (answer instanceof Failed) throw errorFrom(answer.failure)
  return answer
}

async function resultOf(started, signal) {
  const answer = answerTo(unwrap(started), signal)
  return valueOf(answer instanceof Promise ? await answer : answer)
}

// Timers belong to requests, as sockets do: in Cloudflare Workers.
const isPerRequest = native.isPerRequest === true

module.exports = { border, clients, Failed, Waiting, answerTo, isPerRequest, numberOf, reasonOf, release, resultOf, tellEvents, valueOf, whenLost }
