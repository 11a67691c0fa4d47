'use strict'
// Node.js 20 and 22 give Symbol.asyncDispose to the main context only; another one, made by node:vm, finds the same symbol
// in the registry.
const asyncDispose = Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')

// A method of a client that gives a function which reads its counters, and has no reference to the client.
const statsReader = Symbol('redlatch.statsReader')

module.exports = { asyncDispose, statsReader }
