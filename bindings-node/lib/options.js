'use strict'
// Takes an object of options apart: those that mean something in JavaScript only, and those of the core.

const { InvalidArgumentError } = require('./errors.js')

const NONE = Object.freeze({})
const TIMEOUT =
  '"timeout" is no option; how long to wait for a lock is wait, in milliseconds, an option of acquire() and using(), ' +
  'and how long to wait for a connection is connectTimeout, an option of a client'

// `null` means the default.
const isGiven = (value) => value !== undefined && value !== null

// `own` names the options of JavaScript. An option that is `undefined` was not given; `null` means the default.
function split(options, own) {
  if (options === undefined) return { own: NONE }
  if (options === null || typeof options !== 'object' || Array.isArray(options)) {
    throw new InvalidArgumentError(`the options are ${shown(options)}; give an object`)
  }
  const parts = { own: {}, names: [], values: [] }
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined) continue
    if (name === 'timeout') throw new InvalidArgumentError(TIMEOUT)
    if (own.includes(name)) {
      parts.own[name] = value
    } else {
      parts.names.push(name)
      parts.values.push(plain(name, value))
    }
  }
  return parts
}

// A value that the core can judge.
function plain(name, value) {
  if (value === null || ['number', 'boolean', 'string'].includes(typeof value)) return value
  throw new InvalidArgumentError(`${name} is ${shown(value)}; give it a number, a boolean or a string`)
}

// A value as an error shows it: its type if it is too big to be shown.
function shown(value) {
  if (Array.isArray(value)) return 'an array'
  const simple = value === null || ['undefined', 'number', 'boolean', 'bigint'].includes(typeof value)
  return simple ? String(value) : typeof value === 'string' ? JSON.stringify(value) : AN[typeof value]
}

const typeOf = (value) => `of type ${typeof value}`
const AN = { object: 'an object', function: 'a function', symbol: 'a symbol' }

// A string that can be written as UTF-8. It is not shown: a URL may have a password in it. `as` shows what is no string.
function text(what, value, as = shown) {
  if (typeof value !== 'string') throw new InvalidArgumentError(`${what} is ${as(value)}; give it a string`)
  if (value.isWellFormed()) return value
  const at = value.search(/\p{Surrogate}/u)
  throw new InvalidArgumentError(`${what} has half of a surrogate pair at index ${at}; give it whole characters`)
}

module.exports = { isGiven, plain, shown, split, text, typeOf }
