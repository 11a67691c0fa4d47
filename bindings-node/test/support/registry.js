'use strict'
// A registry for npm that gives the packages of a folder, each as `npm pack` made it.

const { execFileSync } = require('node:child_process')
const { createHash } = require('node:crypto')
const { once } = require('node:events')
const { readFileSync, readdirSync } = require('node:fs')
const { createServer } = require('node:http')
const { basename, join } = require('node:path')

// Resolves to { url, stop }.
async function serve(folder) {
  const packages = new Map()
  for (const file of readdirSync(folder).filter((name) => name.endsWith('.tgz'))) {
    const manifest = JSON.parse(execFileSync('tar', ['-xzOf', join(folder, file), 'package/package.json']))
    packages.set(manifest.name, { manifest, file })
  }
  const server = createServer((request, response) => {
    const path = decodeURIComponent(request.url.slice(1))
    if (path.endsWith('.tgz')) return response.end(readFileSync(join(folder, basename(path))))
    const found = packages.get(path)
    if (found === undefined) return response.writeHead(404).end()
    const { manifest, file } = found
    const { name, version } = manifest
    const integrity = `sha512-${createHash('sha512').update(readFileSync(join(folder, file))).digest('base64')}`
    const dist = { tarball: `http://${request.headers.host}/${file}`, integrity }
    response.setHeader('content-type', 'application/json')
    response.end(JSON.stringify({ name, 'dist-tags': { latest: version }, versions: { [version]: { ...manifest, dist } } }))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const stop = () => {
    server.close()
    server.closeAllConnections()
  }
  return { url: `http://127.0.0.1:${server.address().port}/`, stop }
}

module.exports = { serve }
