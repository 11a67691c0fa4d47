'use strict'
// The error classes, made from the core's table.

const { process } = require('#host')
const native = require('#native')

const isOf = (errorClass, value) => Function.prototype[Symbol.hasInstance].call(errorClass, value)

class LockError extends Error {
  constructor(message, options) {
    super(message, options)
    describe(this, new.target, options)
  }

  static [Symbol.hasInstance](value) {
    return isOf(this, value) || (this === LockError && isOf(classes.InvalidArgumentError, value))
  }
}

function describe(error, { kind, retryable }, options) {
  if (kind !== undefined) {
    error.code = `ERR_REDLATCH_${kind.toUpperCase()}`
    error.kind = kind
    error.retryable = retryable
  }
  if (options?.lockName !== undefined) error.lockName = options.lockName
  if (options?.reason !== undefined) error.reason = options.reason
}

// A wrong argument is a TypeError everywhere in JavaScript. A class has one parent only: LockError counts it by `instanceof`.
class ArgumentError extends TypeError {
  constructor(message, options) {
    super(message, options)
    describe(this, new.target, options)
  }
}
rename(LockError, 'LockError')

// The name stands on the prototype, as it does for JavaScript's own errors.
function rename(errorClass, name) {
  Object.defineProperty(errorClass, 'name', { value: name, configurable: true })
  Object.defineProperty(errorClass.prototype, 'name', { value: name, configurable: true, writable: true })
}

const classes = {}
const byNumber = new Map()
const tables = JSON.parse(native.tables())
for (const { number, name, className, retryable } of tables.errors) {
  const errorClass = class extends (name === 'invalid_argument' ? ArgumentError : LockError) {
    static kind = name
    static retryable = retryable
  }
  rename(errorClass, className)
  classes[className] = errorClass
  byNumber.set(number, errorClass)
}

const reasons = new Map(tables.reasons.map((reason) => [reason.number, reason]))

// Names the property of an object that has a name in Redis: what the name stands for, as the core's errors call it.
const thing = Symbol('thing')

const on = (owner, message) => `${owner[thing]} ${JSON.stringify(owner.name)}: ${message}`

// Bun's stacks end where a function awaits: without the lines of the package there would be none.
const tracesWaits = process.versions.bun === undefined

// Errors of our classes that the program has thrown, or has made the reason of a signal. They stay as they are.
const kept = new WeakSet()

function keptAsGiven(error) {
  if (error instanceof LockError) kept.add(error)
  return error
}

// Lets the stack of an error of ours begin with the line that called `above`. `above` is on the stack, or awaits a function that
// is. `owner` is for an error that does not know its lock, such as that of a released hold. The error of a wrong argument gets
// no name of a lock.
function calledFrom(above, error, owner) {
  if (!(error instanceof LockError) || kept.has(error)) return error
  if (owner?.[thing] !== undefined && error.lockName === undefined && error.kind !== 'invalid_argument') {
    error.message = on(owner, error.message)
    error.lockName = owner.name
  }
  if (tracesWaits) Error.captureStackTrace?.(error, above)
  return error
}

// Lets the errors of these methods begin with the line that called them.
function surfaced(owner, { sync = [], async = [] }) {
  for (const name of [...sync, ...async]) {
    const method = owner[name]
    const outer = sync.includes(name)
      ? function (...given) {
          try {
            return method.apply(this, given)
          } catch (error) {
            throw calledFrom(outer, error, this)
          }
        }
      : async function (...given) {
          try {
            return await method.apply(this, given)
          } catch (error) {
            throw calledFrom(outer, error, this)
          }
        }
    Object.defineProperty(outer, 'name', { value: name })
    Object.defineProperty(outer, 'length', { value: method.length })
    Object.defineProperty(owner, name, { value: outer, configurable: true, writable: true })
  }
}

// Makes the error that a failure of the native part tells of. To be called where its stack should begin.
function errorFrom({ kind, message, lockName, reason, cause }) {
  const options = { lockName, reason: reasons.get(reason)?.name }
  if (cause) options.cause = causeFrom(cause)
  return new (byNumber.get(kind))(message, options)
}

// An error of the system has a code as Node's own have one: ECONNREFUSED. It comes from no line of JavaScript.
function causeFrom({ message, code }) {
  const error = new Error(message)
  error.stack = `${error}`
  if (code) error.code = code
  return error
}

// Makes the error of a lost hold from the number of the reason. It comes from no line of the program either.
function lostError(owner, number) {
  const { name: reason, meaning } = reasons.get(number)
  const error = new classes.LockLostError(on(owner, meaning), { lockName: owner.name, reason })
  error.stack = `${error}`
  return error
}

// The error of a loss anew, with the stack of a call that meets it.
function lostAgain({ message, lockName, reason }) {
  return new classes.LockLostError(message, { lockName, reason })
}

// Returns what a native function gave, or throws the failure it told of. `own` are the options that are JavaScript's alone:
// the core cannot tell of them where it lists all that there are.
// A call that is refused at once has begun nothing.
const isRefusal = (result) => typeof result !== 'number' && result?.message !== undefined

function unwrap(result, own = []) {
  if (!isRefusal(result)) return result
  const more = result.listsOptions ? own : []
  throw errorFrom({ ...result, message: [result.message, ...more].join(', ') })
}

module.exports = { LockError, ...classes, internal: { calledFrom, errorFrom, isRefusal, keptAsGiven, lostAgain, lostError, surfaced, thing, unwrap } }
