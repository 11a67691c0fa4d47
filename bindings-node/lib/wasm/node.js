'use strict'
// The WebAssembly part in Node.js, Bun, Deno and Cloudflare Workers: their sockets, clocks and timers.

const { randomFillSync } = require('node:crypto')
const { readFileSync } = require('node:fs')
const net = require('node:net')
const { hostname } = require('node:os')
// Not the global one: what tests put in its place may have no unref(), or never fire.
const { clearImmediate, clearTimeout, setImmediate, setTimeout } = require('node:timers')
const { performance } = require('node:perf_hooks')
const tls = require('node:tls')
const { clockOf } = require('./clock.js')
const { connectBy } = require('./stream.js')

// Taken now: tests put a clock of their own into the place of this one.
const { now: day } = Date
const now = clockOf(day, performance.now.bind(performance))

const word = new BigUint64Array(1)

function random() {
  return randomFillSync(word)[0]
}

function timer(call, wait) {
  const made = setTimeout(call, wait)
  return { clear: () => clearTimeout(made), ref: () => made.ref(), unref: () => made.unref() }
}

// After what sockets have received has been read. It keeps the program alive until then: where nothing did, the event loop would
// wait for something else first.
function afterSockets(call) {
  const made = setImmediate(call)
  return { clear: () => clearImmediate(made), ref: () => {}, unref: () => {} }
}

// The settings of clients with TLS, by their numbers.
const contexts = new Map()

// Reads the certificates. Returns what is wrong with them.
function prepareTls(client, pems) {
  const read = {}
  for (const [name, pem] of Object.entries(pems)) {
    if (pem === '') continue
    const option = `tls${name[0].toUpperCase()}${name.slice(1)}`
    try {
      read[name] = pem.startsWith('@') ? readFileSync(pem.slice(1)) : pem
      tls.createSecureContext(name === 'ca' ? { ca: read[name] } : {})
    } catch (error) {
      return `${option}: ${error.message}; give it PEM text, or the path of a file of it`
    }
  }
  try {
    contexts.set(client, tls.createSecureContext(read))
  } catch (error) {
    return `tlsCert and tlsKey cannot be used: ${error.message}`
  }
}

// What OpenSSL's errors mean, by the numbers of bindings-wasm/README.md.
const FAULTS = [
  [1, /^CERT_HAS_EXPIRED$/],
  [2, /^CERT_NOT_YET_VALID$/],
  [3, /^ERR_TLS_CERT_ALTNAME_INVALID$/],
  [4, /^(UNABLE_TO_GET_ISSUER_CERT(_LOCALLY)?|UNABLE_TO_VERIFY_LEAF_SIGNATURE|(DEPTH_ZERO_)?SELF_SIGNED_CERT(_IN_CHAIN)?)$/],
  [5, /^CERT_REVOKED$/],
  [6, /^CERT_/],
  [7, /ALERT_(CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE)$/],
  [8, /ALERT_(BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|CERTIFICATE_\w+|UNKNOWN_CA|DECRYPT_ERROR|ACCESS_DENIED)$/],
  [9, /^ERR_SSL_(WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG)$/],
  [0, /^ERR_(SSL|TLS)_/],
]

function connect({ client, tls: encrypted, host, port, keepAlive }, heard) {
  const place = port === 0 ? { path: host } : { host, port, autoSelectFamily: true }
  const settings = { ...place, noDelay: true, keepAlive: true, keepAliveInitialDelay: keepAlive }
  const servername = net.isIP(host) === 0 ? host : undefined
  const socket = encrypted
    ? // NODE_TLS_REJECT_UNAUTHORIZED is for others: a password is sent here.
      tls.connect({ ...settings, secureContext: contexts.get(client), servername, rejectUnauthorized: true })
    : net.connect(settings)
  let why
  socket.once(encrypted ? 'secureConnect' : 'connect', heard.opened)
  socket.on('data', heard.received)
  socket.on('error', (error) => {
    why = error
  })
  socket.on('end', () => socket.destroy())
  socket.on('close', () => {
    if (why === undefined) return heard.closed('the server has closed it')
    // Where several addresses were tried each has an error of its own.
    const { code, message } = why.errors?.[0] ?? why
    heard.closed(message, encrypted ? FAULTS.find(([, pattern]) => pattern.test(code))?.[0] : undefined)
  })
  return socket
}

const platform = {
  now,
  random,
  timer,
  afterSockets,
  connect,
  connectBy,
  prepareTls,
  forgetTls: (client) => contexts.delete(client),
  // A microtask.
  soon: (call) => void Promise.resolve().then(call),
  program: { language: 'node', pid: process.pid, host: hostname() },
  url: () => process.env.REDLATCH_URL || undefined,
}

module.exports = { platform }
