'use strict'
// The platforms that there is a binary for, by the names that napi-rs gives them, and the one that this is.

const { Buffer } = require('node:buffer')
const { closeSync, openSync, readSync } = require('node:fs')

// Each has a package @redlatch/<name>. The packing scripts make them of this list, lib/native.js loads them.
const PLATFORMS = [
  'darwin-arm64',
  'darwin-x64',
  'linux-arm64-gnu',
  'linux-arm64-musl',
  'linux-x64-gnu',
  'linux-x64-musl',
  'win32-arm64-msvc',
  'win32-x64-msvc',
]

function platform() {
  const { platform: system, arch } = process
  const suffix = { linux: () => (libc() === 'musl' ? '-musl' : '-gnu'), win32: () => '-msvc' }[system]?.() ?? ''
  return `${system}-${arch}${suffix}`
}

// The C library of Linux is that of Node itself, which names its loader at the start of its file. A report says it too, but
// takes milliseconds.
function libc() {
  const start = Buffer.alloc(4096)
  try {
    const file = openSync(process.execPath, 'r')
    readSync(file, start)
    closeSync(file)
  } catch {
    // The program may not read it.
  }
  if (start.includes('/ld-musl-')) return 'musl'
  if (start.includes('/ld-linux')) return 'glibc'
  return glibcVersion() === undefined ? 'musl' : 'glibc'
}

function glibcVersion() {
  const before = process.report.excludeNetwork
  process.report.excludeNetwork = true // or it looks up the names of all peers
  try {
    return process.report.getReport().header.glibcVersionRuntime
  } finally {
    process.report.excludeNetwork = before
  }
}

module.exports = { PLATFORMS, glibcVersion, platform }
