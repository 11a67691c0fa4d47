// The WebAssembly part in Cloudflare Workers. They load no native part and compile nothing: a bundler gives them the module as one that
// is compiled.

import module from '../../redlatch.wasm'
import { backendOf } from './host.js'
import { platform } from './node.js'

// Certificates are the platform's alone.
function prepareTls(_, pems) {
  const [name] = Object.entries(pems).find(([, pem]) => pem !== '') ?? []
  if (name === undefined) return undefined
  return `tls${name[0].toUpperCase()}${name.slice(1)} is given; leave it out: a Worker trusts the certificates that its platform trusts`
}

const nothing = () => {}
const NO_SOCKET = { write: nothing, destroy: nothing, ref: nothing, unref: nothing }

// The runtime throws at once for an address that it does not let a Worker reach, such as the path of a Unix socket.
function connect(place, heard) {
  try {
    return platform.connect(place, heard)
  } catch (error) {
    platform.soon(() => heard.closed(error.message))
    return NO_SOCKET
  }
}

// Sockets and timers belong to the request that makes them. Returns a function that tells whether the request that calls it is the
// one that calls this; undefined outside of requests, where there are neither. The runtime gives a request no name, but lets no other
// one look at its WebSocket.
function request() {
  try {
    const socket = new WebSocketPair()[0]
    platform.random()
    return () => {
      try {
        return socket.readyState !== undefined
      } catch {
        return false
      }
    }
  } catch {
    return undefined
  }
}

// A client lives in the context of its request. One without a context would be that of the request that loads this.
export const { Border, isPerRequest, isWasm, tables } = backendOf(module, { ...platform, connect, prepareTls, request })
