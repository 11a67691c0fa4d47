'use strict'
// The platform: its name as it stands in the names of binaries, linux-x64-gnu and the like, and what npm calls it.

function platform() {
  const { platform: system, arch } = process
  return [system, arch, ...libc().map((name) => (name === 'glibc' ? 'gnu' : name))].join('-')
}

// The fields of package.json by which npm refuses a package on another platform than this one.
function fields() {
  return { os: [process.platform], cpu: [process.arch], ...(libc().length > 0 && { libc: libc() }) }
}

// The C library, where a system has several.
function libc() {
  if (process.platform !== 'linux') return []
  return [report().header.glibcVersionRuntime === undefined ? 'musl' : 'glibc']
}

function report() {
  const before = process.report.excludeNetwork
  process.report.excludeNetwork = true // or it looks up the names of all peers
  try {
    return process.report.getReport()
  } finally {
    process.report.excludeNetwork = before
  }
}

module.exports = { fields, platform, report }
