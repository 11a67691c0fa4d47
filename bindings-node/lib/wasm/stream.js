'use strict'
// A connection on a stream that the program opens: a duplex of Web Streams, as WebTransport, WebSocketStream and the sockets of
// Cloudflare are.

const nothing = () => {}

// A chunk of a stream as bytes; undefined for anything else.
function bytesOf(chunk) {
  if (chunk instanceof Uint8Array) return chunk
  if (chunk instanceof ArrayBuffer) return new Uint8Array(chunk)
  return ArrayBuffer.isView(chunk) ? new Uint8Array(chunk.buffer, chunk.byteOffset, chunk.byteLength) : undefined
}

const isDuplex = (stream) => typeof stream?.readable?.getReader === 'function' && typeof stream.writable?.getWriter === 'function'

// `open` is the option `connect`.
function connectBy(open, { host, port, tls }, heard) {
  const abort = new AbortController()
  let [reader, writer] = []

  function destroy() {
    abort.abort()
    reader?.cancel().catch(nothing)
    writer?.abort().catch(nothing)
  }

  function end(text) {
    if (abort.signal.aborted) return
    destroy()
    heard.closed(text)
  }

  async function run() {
    const place = port === 0 ? { path: host, tls } : { host, port, tls }
    const stream = await open({ ...place, signal: abort.signal })
    if (!isDuplex(stream)) return end('connect gave no stream; return { readable, writable }, a pair of Web Streams')
    reader = stream.readable.getReader()
    writer = stream.writable.getWriter()
    writer.closed.catch(nothing) // a write tells the error
    if (abort.signal.aborted) return destroy()
    heard.opened()
    while (!abort.signal.aborted) {
      const { value, done } = await reader.read()
      if (abort.signal.aborted) return
      if (done) return end('the server has closed it')
      const bytes = bytesOf(value)
      if (bytes === undefined) return end('the stream of connect brings something other than bytes; let it bring a Uint8Array or an ArrayBuffer')
      heard.received(bytes)
    }
  }

  // The engine takes no answer before it has the number of the connection.
  const failed = (error) => end(error?.message ?? `${error}`)
  Promise.resolve().then(run).catch(failed)
  return { write: (bytes) => writer.write(bytes).catch(failed), destroy, ref: nothing, unref: nothing }
}

module.exports = { connectBy }
