'use strict'
// Node.js 20 and 22 give Symbol.asyncDispose to the main context only; another one, made by node:vm, finds the same symbol
// in the registry.
const asyncDispose = Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')

module.exports = { asyncDispose }
