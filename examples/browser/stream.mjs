// The option `connect` of a client in a page: a stream to the server over a WebSocket to the relay.
export function streamBy(relay) {
  return () =>
    new Promise((resolve, reject) => {
      const socket = new WebSocket(relay)
      socket.binaryType = 'arraybuffer'
      const readable = new ReadableStream({
        start(controller) {
          socket.onmessage = ({ data }) => controller.enqueue(new Uint8Array(data))
          socket.onclose = () => controller.error(new Error(`the relay ${relay} has closed the connection`))
        },
        cancel: () => socket.close(),
      })
      const writable = new WritableStream({ write: (bytes) => socket.send(bytes), close: () => socket.close(), abort: () => socket.close() })
      socket.onopen = () => resolve({ readable, writable })
      socket.onerror = () => reject(new Error(`the relay ${relay} cannot be reached`))
    })
}
