'use strict'
// Before packing: writes into package.json for which platform the binary is that goes with it, so that npm refuses the package
// on another one, naming both. After packing, with --back: takes it out again, since the source is for all.
//
// node scripts/fields.js [--back]

const { readFileSync, writeFileSync } = require('node:fs')
const { join } = require('node:path')
const { fields } = require('../lib/platform.js')

const file = join(__dirname, '..', 'package.json')
const plain = readFileSync(file, 'utf8').replace(/^ {2}"(cpu|libc)": .*\n/gm, '')
const { cpu, libc } = fields()
const row = (name, value) => (value === undefined ? '' : `  "${name}": ${JSON.stringify(value)},\n`)
const added = row('cpu', cpu) + row('libc', libc)
const packed = plain.replace(/^ {2}"os": .*\n/m, (os) => os + added)
if (packed === plain) throw new Error(`${file} has no line "os" after which cpu and libc could stand`)
writeFileSync(file, process.argv.includes('--back') ? plain : packed)
