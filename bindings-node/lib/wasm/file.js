'use strict'
// The WebAssembly part where the module is a file that can be read: in Node.js, Bun and Deno.

const { readFileSync } = require('node:fs')
const { join } = require('node:path')
const { backendOf } = require('./host.js')
const { platform } = require('./node.js')

module.exports = backendOf(new WebAssembly.Module(readFileSync(join(__dirname, '../../redlatch.wasm'))), platform)
