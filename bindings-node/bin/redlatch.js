#!/usr/bin/env node
'use strict'
// `npx redlatch`: the command line, a program of its own in the package of the platform.

const { spawn } = require('node:child_process')
const { accessSync, readFileSync, constants: modes } = require('node:fs')
const { constants } = require('node:os')
const { PLATFORMS, platform } = require('../lib/platform.js')

// As the program itself says that something is missing, and that it cannot be run.
const UNAVAILABLE = 69
const CANNOT_RUN = 126

function fail(text, code) {
  process.stderr.write(`redlatch: ${text}\n`)
  process.exit(code)
}

function program() {
  const name = platform()
  if (!name.startsWith('linux-')) fail(`the command line is for Linux so far, and this is ${name}`, UNAVAILABLE)
  if (!PLATFORMS.includes(name)) fail(`no package has the program for ${name}; with Rust: cargo install redlatch-cli`, UNAVAILABLE)
  try {
    return require.resolve(`@redlatch/${name}/redlatch`)
  } catch {
    const { version } = require('../package.json')
    return fail(
      `the package @redlatch/${name}, which has the program, is not installed; npm install @redlatch/${name}@${version}, ` +
        'or with Rust: cargo install redlatch-cli',
      UNAVAILABLE,
    )
  }
}

const file = program()
const words = process.argv.slice(2)
// Where it fails, process.execve may end Node.js itself, without a word.
try {
  accessSync(file, modes.X_OK)
} catch (error) {
  fail(`cannot run ${file}: ${error.message}`, CANNOT_RUN)
}
// npm passes a signal on to the shell that it started for us, and the shell ends without a word to us. The program ends with all of
// them. A script that leaves us in the background means to end before us.
function starters() {
  const script = process.env.npm_lifecycle_script
  if (!script || /[^&>]&(?![&\d])/.test(script)) return []
  try {
    const shell = process.ppid
    const [name, flag, text] = readFileSync(`/proc/${shell}/cmdline`, 'utf8').split('\0')
    if (name.startsWith('npm ')) return [shell]
    const [, npm] = readFileSync(`/proc/${shell}/stat`, 'utf8').split(') ').pop().split(' ')
    return flag === '-c' && text.includes(script) ? [shell, Number(npm)] : []
  } catch {
    return []
  }
}

const pids = starters()
// In the place of Node.js, so that signals, the terminal and the exit code are the program's own. Node.js 20 cannot.
if (process.execve) process.execve(file, [file, ...words], { ...process.env, REDLATCH_STARTERS: pids.join(' ') })

let child
// Before it begins: a signal that ended this process meanwhile would leave the program alone. Node.js tells of it in a later tick. The
// program knows a copy of what it got from a terminal.
for (const signal of ['SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGUSR2']) process.on(signal, () => child.kill(signal))
child = spawn(file, words, { stdio: 'inherit', env: { ...process.env, REDLATCH_STARTERS: [...pids, process.pid].join(' ') } })
child.on('error', (error) => fail(`cannot run ${file}: ${error.message}`, CANNOT_RUN))
child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]))
