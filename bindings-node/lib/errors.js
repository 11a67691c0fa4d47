'use strict'
// The error classes, made from the core's table.

const native = require('./native.js')
const { camel, pascal } = require('./names.js')

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

// Kinds whose bare name would say too little.
const NAMED_AFTER_THE_LOCK = new Set(['timeout', 'cancelled', 'lost'])

const classes = {}
const byNumber = new Map()
for (const { number, name, retryable } of native.errorKinds()) {
  const errorClass = class extends LockError {
    static kind = name
    static retryable = retryable
  }
  const className = `${NAMED_AFTER_THE_LOCK.has(name) ? 'Lock' : ''}${pascal(name)}Error`
  rename(errorClass, className)
  classes[className] = errorClass
  byNumber.set(number, errorClass)
}

const reasons = new Map(native.lostReasons().map((reason) => [reason.number, reason]))
const optionNames = new Set(native.options().map(({ name }) => name))

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

// Returns what a native function gave, or throws the failure it told of. The core spells the names of options in its
// own way; `given` are those that the caller wrote, `own` those that are JavaScript's alone, of which it cannot tell.
function unwrap(result, given = [], own = []) {
  if (typeof result === 'number' || result?.message === undefined) return result
  const message = result.message.replace(/\b[a-z]+(?:_[a-z]+)+\b/g, (name) =>
    optionNames.has(name) || given.includes(name) ? camel(name) : name,
  )
  const more = own.length > 0 && /is no option of .*; there are /.test(message) ? `, ${own.join(', ')}` : ''
  throw errorFrom({ ...result, message: message + more })
}

module.exports = { LockError, ...classes, internal: { errorFrom, lostError, unwrap } }
