'use strict'
// Jest takes the files for browsers in its environment `jsdom`, which is Node.js: the ones for Node.js are loaded then. No bundler
// sees that.

const { compiled } = require('#module')

function inNode(name) {
  if (compiled !== undefined) return undefined
  const modules = globalThis.process?.getBuiltinModule?.('node:module')
  if (modules === undefined) throw new Error("redlatch was loaded by require() for a browser; load it by import: import { Client } from 'redlatch'")
  return modules.createRequire(__filename)(name)
}

module.exports = { inNode }
