'use strict'
// Options, counters and error names are spelled as JavaScript does, by rule: the core's `watchdog_lease` is
// `watchdogLease` here. There is no list to keep in step.

const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase())
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
const pascal = (name) => camel(`_${name}`)

// Node.js 20 and 22 give Symbol.asyncDispose to the main context only; another one, made by node:vm, finds the same symbol
// in the registry.
const asyncDispose = Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')

module.exports = { asyncDispose, camel, snake, pascal }
