'use strict'
// The promises that wait for the native part. One of these per environment: the main thread, each worker.

const native = require('./native.js')
const { errorFrom, unwrap } = require('./errors.js').internal

// By the number of the call: what takes its answer.
const calls = new Map()
// By the number of the hold: what is to be told of its loss. Never a Hold itself, which may be garbage-collected.
const holds = new Map()
// By the number of the client: a weak reference to it.
const clients = new Map()

const border = new native.Border(drain)

// Called by the native part. Nothing in here may throw: the rest of the batch would be lost.
function drain() {
  const { done, failed = [], lost = [], eventful = [] } = unwrap(border.drain())
  for (let at = 0; at < done.length; at += 2) settle(done[at], done[at + 1])
  for (let at = 0; at < failed.length; at += 2) settle(failed[at], new Failed(failed[at + 1]))
  for (let at = 0; at < lost.length; at += 2) holds.get(lost[at])?.tellLost(lost[at + 1])
  for (const id of eventful) clients.get(id)?.deref()?.[tellEvents]()
}

const tellEvents = Symbol('tellEvents')

class Failed {
  constructor(failure) {
    this.failure = failure
  }
}

function settle(id, answer) {
  const take = calls.get(id)
  calls.delete(id)
  take?.(answer)
}

// The answer to the call that was just made, if it was there at once.
function atOnce(id) {
  const batch = unwrap(border.atOnce(id))
  if (batch === null) return undefined
  return batch.failed ? new Failed(batch.failed[1]) : batch.done[1]
}

// The answer to a call, be it a Failed: itself, or a promise of it.
function answerTo(id) {
  const answer = atOnce(id)
  return answer !== undefined ? answer : new Promise((resolve) => calls.set(id, resolve))
}

// The same until `signal` is aborted: then the call is cancelled, and what it may have won meanwhile is released.
function answerUntil(id, signal) {
  const answer = atOnce(id)
  if (answer !== undefined) return answer
  return new Promise((resolve, reject) => {
    const abort = () => {
      border.cancel(id)
      calls.delete(id)
      reject(signal.reason)
    }
    signal.addEventListener('abort', abort, { once: true })
    calls.set(id, (answer) => {
      signal.removeEventListener('abort', abort)
      resolve(answer)
    })
  })
}

// What a call gives. It throws from an async function, so that the stack shows who waits.
async function resultOf(started, { names, signal } = {}) {
  const id = unwrap(started, names)
  const answer = await (signal === undefined ? answerTo(id) : answerUntil(id, signal))
  if (answer instanceof Failed) throw errorFrom(answer.failure)
  return answer
}

module.exports = { border, clients, holds, Failed, answerTo, resultOf, tellEvents }
