'use strict'
// The thread of lib/wasm/thread.js: it has the module, sockets and timers, and does what the messages say.

const { parentPort, workerData } = require('node:worker_threads')
const { backendOf } = require('./host.js')
const { ASK, BATCH, BORDER, CALL, DROP, END, MAKE, REPLY } = require('./messages.js')
const { platform } = require('./node.js')


const { port, bell, module: compiled } = workerData

// The clients that the module still has. A dropped client stays until it has given back its locks and permits.
const clients = new Set()
let isLast = false

function endIfLast() {
  if (isLast && clients.size === 0) port.close()
}

const backend = backendOf(compiled, {
  ...platform,
  // The other side knows the environment of the program, of which this one has an old copy.
  url: () => undefined,
  forgetTls: (client) => {
    platform.forgetTls(client)
    clients.delete(client)
    endIfLast()
  },
})

class Border extends backend.Border {
  // The other side gives all numbers out, so that it need not ask for them.
  next

  nextId() {
    this.next += 1
    return this.next - 1
  }

  client(...given) {
    clients.add(this.next)
    return super.client(...given)
  }

  releaseHold(hold) {
    return this.release()(hold)
  }

  // Answers that were given before the call was cancelled are told before.
  cancel(id) {
    send()
    super.cancel(id)
  }
}

const border = new Border(send)
const objects = new Map([[BORDER, border]])
const take = border.drain()

function post(...message) {
  port.postMessage(message)
  ring()
}

// The other side may be waiting.
function ring() {
  Atomics.add(bell, 0, 1)
  Atomics.notify(bell, 0)
}

function send() {
  const batch = take()
  // The functions that give permits back are on the other side.
  delete batch.taken
  if (batch.done.length > 0 || Object.keys(batch).length > 1) post(BATCH, batch)
}

function serve([kind, id, target, method, given]) {
  border.next = id
  const object = objects.get(target)
  switch (kind) {
    case ASK: {
      const started = object[method](...given)
      if (typeof started !== 'number') border.failed(id, started)
      break
    }
    case CALL:
      post(REPLY, object[method](...given))
      break
    case MAKE: {
      const made = object[method](...given)
      const isRefused = made.message !== undefined
      if (!isRefused) objects.set(id, made)
      else clients.delete(id)
      post(REPLY, isRefused ? made : undefined)
      break
    }
    case DROP:
      objects.delete(id)
      object.drop()
      break
    case END:
      isLast = true
      endIfLast()
      break
  }
}

port.on('message', (messages) => messages.forEach(serve))
process.on('exit', () => {
  Atomics.store(bell, 1, 1)
  ring()
})
parentPort.unref()
