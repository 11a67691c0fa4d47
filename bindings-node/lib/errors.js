'use strict'
// The error classes, made from the core's table.

const native = require('./native.js')

class LockError extends Error {
  constructor(message, options) {
    super(message, options)
    const { kind, retryable } = new.target
    if (kind !== undefined) {
      this.code = `ERR_REDLATCH_${kind.toUpperCase()}`
      this.kind = kind
      this.retryable = retryable
    }
    if (options?.lockName !== undefined) this.lockName = options.lockName
    if (options?.reason !== undefined) this.reason = options.reason
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
for (const { number, name, className, retryable } of native.errorKinds()) {
  const errorClass = class extends LockError {
    static kind = name
    static retryable = retryable
  }
  rename(errorClass, className)
  classes[className] = errorClass
  byNumber.set(number, errorClass)
}

const reasons = new Map(native.lostReasons().map((reason) => [reason.number, reason]))

const on = (lockName, message) => (lockName === undefined ? message : `lock ${JSON.stringify(lockName)}: ${message}`)

// Makes the error that a failure of the native part tells of. To be called where its stack should begin.
function errorFrom({ kind, message, lockName, reason }) {
  return new (byNumber.get(kind))(on(lockName, message), { lockName, reason: reasons.get(reason)?.name })
}

// Makes the error of a lost hold from the number of the reason.
function lostError(lockName, number) {
  const { name: reason, meaning } = reasons.get(number)
  return new classes.LockLostError(on(lockName, meaning), { lockName, reason })
}

// Returns what a native function gave, or throws the failure it told of. `own` are the options that are JavaScript's alone:
// the core cannot tell of them where it lists all that there are.
function unwrap(result, own = []) {
  if (typeof result === 'number' || result?.message === undefined) return result
  const more = result.listsOptions ? own : []
  throw errorFrom({ ...result, message: [result.message, ...more].join(', ') })
}

module.exports = { LockError, ...classes, internal: { errorFrom, lostError, unwrap } }
