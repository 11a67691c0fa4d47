'use strict'
// The name of the platform as it stands in the names of binaries: linux-x64-gnu and the like.

function platform() {
  const { platform: system, arch } = process
  if (system !== 'linux') return `${system}-${arch}`
  return `${system}-${arch}-${usesGlibc() ? 'gnu' : 'musl'}`
}

function usesGlibc() {
  const before = process.report.excludeNetwork
  process.report.excludeNetwork = true // or it looks up the names of all peers
  try {
    return process.report.getReport().header.glibcVersionRuntime !== undefined
  } finally {
    process.report.excludeNetwork = before
  }
}

module.exports = { platform }
