'use strict'
// The WebAssembly part on a thread of its own, which renews locks while the event loop of the program is blocked. This is to lib/
// what the native part is. It decides nothing: lib/wasm/worker.js has the module there, and this passes calls on and takes answers.

const { AsyncLocalStorage } = require('node:async_hooks')
const { join } = require('node:path')
// Not the global one: what tests put in its place may never fire.
const { setImmediate } = require('node:timers')
const { MessageChannel, Worker, receiveMessageOnPort } = require('node:worker_threads')
const { Table } = require('../table.js')
const { ASK, BATCH, BORDER, CALL, DROP, END, MAKE, REPLY } = require('./messages.js')

// A thread that owes a reply for so many milliseconds is stuck or dead: it does nothing but this.
const LIMIT = 10_000
// The largest `exitLimit`.
const LONGEST_END = 60_000
// A wait checks so often, in milliseconds, whether the thread lives. A suspend counts as one check, however long it is.
const LOOK = 100

const STREAM = 'connect is given, and the connections belong to a thread, which cannot call it; leave it out, or set REDLATCH_WASM=1'

// A thread belongs to no context of the program: what it brings concerns all of it.
const snapshot = AsyncLocalStorage.snapshot()

// One thread, and the messages to and from it.
class Thread {
  #port
  #bell = new Int32Array(new SharedArrayBuffer(8)) // how many messages it has sent, and whether it has ended
  #outgoing = []
  #replies = []
  #heard
  #ended
  failure // once it has ended
  clients = 0 // that are not garbage-collected
  #waiting = 0 // calls without an answer

  // `heard` takes each batch of answers, and `ended` the reason once the thread has ended.
  constructor(module, heard, ended) {
    const { port1, port2 } = new MessageChannel()
    this.#port = port1
    this.#heard = heard
    this.#ended = (text) => {
      // A stuck thread could go on later, and renew locks that count as lost.
      worker.terminate().catch(() => undefined)
      ended(this, text)
    }
    // The thread inherits the flags of Node.js. `--input-type` is for a program without a file: Node.js refuses it for worker.js.
    const isNoFile = process.execArgv.some((flag) => flag.startsWith('--input-type'))
    const workerData = { module, port: port2, bell: this.#bell }
    const settings = { name: 'redlatch', workerData, transferList: [port2], execArgv: isNoFile ? [] : undefined }
    const worker = new Worker(join(__dirname, 'worker.js'), settings)
    worker.on('error', (error) => {
      // A call that waited has found the thread dead before, without this cause.
      if (this.failure !== undefined) process.emitWarning(`the thread of redlatch has failed: ${error}`, { type: 'RedlatchWarning', code: 'REDLATCH_THREAD' })
      this.#ended(`${error}`)
    })
    worker.on('exit', () => this.#ended('its thread has ended'))
    worker.unref()
    port1.on('message', ([kind, batch]) => kind === BATCH && heard(batch, true))
    port1.unref()
  }

  // The thread keeps the program alive as long as it owes an answer.
  owes() {
    this.#waiting += 1
    if (this.#waiting === 1) this.#port.ref()
  }

  hasAnswered() {
    this.#waiting -= 1
    if (this.#waiting === 0) this.#port.unref()
  }

  // Sends a message with all others that are made in one go.
  post(...message) {
    this.#outgoing.push(message)
    // A microtask: contexts of node:vm have no queueMicrotask().
    if (this.#outgoing.length === 1) void Promise.resolve().then(() => this.#send())
  }

  #send() {
    if (this.#outgoing.length === 0) return
    this.#port.postMessage(this.#outgoing)
    this.#outgoing = []
  }

  // Sends a message and waits for its reply: some ten microseconds. Returns undefined if the thread has ended.
  call(...message) {
    this.#outgoing.push(message)
    this.#send()
    this.waitFor(() => this.#replies.length > 0)
    return this.#replies.shift()
  }

  // Blocks until the messages that come make `isOver` true, or the thread has ended.
  waitFor(isOver, limit = LIMIT) {
    let silent = 0
    while (!isOver()) {
      const rung = Atomics.load(this.#bell, 0)
      const received = receiveMessageOnPort(this.#port)
      if (received !== undefined) {
        const [kind, value] = received.message
        if (kind === REPLY) this.#replies.push(value)
        else this.#heard(value)
        silent = 0
        continue
      }
      if (Atomics.load(this.#bell, 1) !== 0) return this.#ended('its thread has ended')
      if (Atomics.wait(this.#bell, 0, rung, LOOK) !== 'timed-out') continue
      // A thread that runs out of memory ends without a ring. The event for it comes after this wait, and the port mostly knows before.
      if (this.#port.postMessage([]) === false) return this.#ended('its thread has ended')
      silent += LOOK
      if (silent >= limit) return this.#ended('its thread does not answer')
    }
  }
}

// Takes the place of `backend`, the WebAssembly part on this thread, whose tables it has.
function threadOf(module, backend) {
  const numberOf = (rows, name) => rows.find((row) => row.name === name).number
  const { errors, reasons } = JSON.parse(backend.tables())
  const unreachable = numberOf(reasons, 'unreachable')
  const failureOf = (kind, message) => ({ kind: numberOf(errors, kind), message, listsOptions: false })

  // An object that is garbage-collected is forgotten by the thread.
  const collected = new FinalizationRegistry(({ border, thread, id, isClient }) => {
    thread.post(DROP, id, id)
    if (isClient) border.leave(thread)
  })

  class Border {
    #drain
    #thread
    #last = BORDER
    #asked = new Table() // by number, each call without an answer: its thread, and what is made of the answer
    #held = new Table() // the thread of each hold
    #batches = [] // that have come and are not told

    constructor(drain) {
      this.#drain = drain
    }

    // ---- what threads tell ----

    // `isFree`: no function of the program is under way.
    #heard(batch, isFree) {
      for (let at = 0; at < batch.done.length; at += 1) {
        const id = Math.abs(batch.done[at])
        if (batch.done[at] > 0) at += 1
        const asked = this.#answered(id)
        if (asked?.isHold) this.#held.set(id, asked.thread)
        if (asked?.giveBack !== undefined) (batch.taken ??= new Map()).set(id, asked.giveBack)
      }
      for (let at = 0; at < (batch.failed?.length ?? 0); at += 2) this.#answered(batch.failed[at])
      this.#batches.push(batch)
      if (this.#batches.length > 1) return
      if (isFree) this.#drain()
      else this.#tellSoon()
    }

    #tellSoon() {
      snapshot(setImmediate, () => {
        let isAnswered = false
        while (this.#batches.length > 0) {
          const { done, lost } = this.#batches[0]
          // A Hold is made some ticks after its grant, and its loss comes after it.
          if (isAnswered && lost !== undefined) return this.#tellSoon()
          isAnswered ||= done.length > 0
          this.#drain()
        }
      })
    }

    #answered(id) {
      const asked = this.#asked.take(id)
      asked?.thread.hasAnswered()
      return asked
    }

    // A thread that has ended answers nothing. Its calls fail, its holds are lost, and the next client gets another thread.
    #ended(thread, text) {
      if (thread.failure !== undefined) return
      const message = `the WebAssembly part of redlatch has failed: ${text}; its holds count as lost, open a new client`
      thread.failure = failureOf('internal', message)
      const batch = { done: [], failed: [], lost: [] }
      this.#asked.forEach((id, asked) => asked.thread === thread && batch.failed.push(id, thread.failure))
      this.#held.forEach((id, of) => of === thread && batch.lost.push(id, unreachable))
      this.#heard(batch)
    }

    // ---- for the objects below ----

    get thread() {
      if (this.#thread === undefined || this.#thread.failure !== undefined) {
        const made = () => new Thread(module, (...told) => this.#heard(...told), (thread, text) => this.#ended(thread, text))
        this.#thread = snapshot(made)
      }
      return this.#thread
    }

    nextId() {
      this.#last += 1
      return this.#last
    }

    // Asks for something with an answer. If it is refused, that is its answer. `then`: whether it is a hold, or what gives it back if the
    // caller gives up before it is told.
    ask(thread, then, target, method, ...given) {
      if (thread.failure !== undefined) return thread.failure
      const id = this.nextId()
      this.#note(id, { thread, ...then })
      thread.post(ASK, id, target, method, given)
      return id
    }

    // Asks for a hold, and waits for a refusal of these arguments.
    askWith(thread, target, method, ...given) {
      if (thread.failure !== undefined) return thread.failure
      const id = this.nextId()
      this.#note(id, { thread, isHold: true })
      const started = thread.call(CALL, id, target, method, given)
      if (started !== id) this.#answered(id)
      return thread.failure ?? started
    }

    #note(id, asked) {
      this.#asked.set(id, asked)
      asked.thread.owes()
    }

    // Asks something that is answered at once.
    call(thread, target, method, ...given) {
      return thread.failure ?? thread.call(CALL, this.nextId(), target, method, given) ?? thread.failure
    }

    // The same, for a caller that cannot be told of a failure.
    callOr(otherwise, thread, target, method, ...given) {
      const told = this.call(thread, target, method, ...given)
      return thread.failure === undefined ? told : otherwise
    }

    // Has the thread make an object with this number. Returns why it did not.
    make(thread, id, target, method, ...given) {
      return thread.failure ?? thread.call(MAKE, id, target, method, given) ?? thread.failure
    }

    // ---- for lib/ ----

    get isWasm() {
      return true
    }

    newContext() {
      return this.nextId()
    }

    drain() {
      return () => this.#batches.shift() ?? { done: [] }
    }

    client(url, names, values, connect) {
      if (connect !== undefined) return failureOf('invalid_argument', STREAM)
      const { thread } = this
      const id = this.nextId()
      thread.clients += 1
      const failure = this.make(thread, id, BORDER, 'client', url, names, values)
      if (failure === undefined) return new Client(this, thread, id)
      this.leave(thread)
      return failure
    }

    // A client is gone. A test runner loads the package again and again: the last client takes the thread along, once the thread has
    // done what that client owes.
    leave(thread) {
      thread.clients -= 1
      if (thread.clients > 0) return
      if (this.#thread === thread) this.#thread = undefined
      thread.post(END)
    }

    cancel(id) {
      const thread = this.#asked.get(id)?.thread ?? this.#held.take(id)
      // An answer that was given before has come when this returns.
      if (thread !== undefined) this.call(thread, BORDER, 'cancel', id)
      if (this.#answered(id) !== undefined) return
      this.#held.take(id)
      for (const { taken } of this.#batches) taken?.get(id)?.()
    }

    #askHold(id, otherwise, method) {
      const thread = this.#held.get(id)
      return thread === undefined ? otherwise : this.callOr(otherwise, thread, BORDER, method, id)
    }

    isHeld(id) {
      return this.#askHold(id, false, 'isHeld')
    }

    remaining(id) {
      return this.#askHold(id, 0, 'remaining')
    }

    holdCount(id) {
      return this.#askHold(id, 0, 'holdCount')
    }

    owner(id) {
      return this.#askHold(id, '', 'owner')
    }

    abandon(id) {
      const known = this.#askHold(id, false, 'abandon')
      this.#held.take(id)
      return known
    }

    #ofHold(id) {
      return this.#held.get(id) ?? this.#thread ?? this.thread
    }

    check(id) {
      return this.call(this.#ofHold(id), BORDER, 'check', id)
    }

    release() {
      return (hold) => {
        const thread = this.#ofHold(hold)
        if (thread.failure === undefined) this.#held.take(hold)
        return this.ask(thread, undefined, BORDER, 'releaseHold', hold)
      }
    }

    extend(hold, lease) {
      return this.ask(this.#ofHold(hold), undefined, BORDER, 'extend', hold, lease)
    }

    watchSignals() {
      // A thread hears of no signal.
    }

    // The program ends. Its locks are released, and each client gives up after its limit.
    end() {
      const thread = this.#thread
      if (thread === undefined || thread.failure !== undefined) return
      const calls = thread.call(CALL, this.nextId(), BORDER, 'closeAll', []) ?? []
      for (const id of calls) this.#note(id, { thread })
      this.#last = Math.max(this.#last, ...calls)
      thread.waitFor(() => calls.every((id) => this.#asked.get(id) === undefined), LONGEST_END + LIMIT)
    }
  }

  // An object of the thread.
  class Remote {
    #border
    #thread
    id
    client // as long as there is one of its objects there is the client

    constructor(border, thread, id, client) {
      this.#border = border
      this.#thread = thread
      this.id = id
      this.client = client
      collected.register(this, { border, thread, id, isClient: client === undefined })
    }

    ask(method, ...given) {
      return this.#border.ask(this.#thread, undefined, this.id, method, ...given)
    }

    askForHold(method, ...given) {
      return this.#border.ask(this.#thread, { isHold: true }, this.id, method, ...given)
    }

    askForHoldWith(method, ...given) {
      return this.#border.askWith(this.#thread, this.id, method, ...given)
    }

    take(giveBack, method, ...given) {
      return this.#border.ask(this.#thread, { giveBack }, this.id, method, ...given)
    }

    call(method, ...given) {
      return this.#border.call(this.#thread, this.id, method, ...given)
    }

    make(Made, method, ...given) {
      const id = this.#border.nextId()
      const failure = this.#border.make(this.#thread, id, this.id, method, ...given)
      return failure ?? new Made(this.#border, this.#thread, id, this)
    }

    callOr(otherwise, method, ...given) {
      return this.#border.callOr(otherwise, this.#thread, this.id, method, ...given)
    }
  }

  class Client extends Remote {
    ready() {
      return this.ask('ready')
    }

    locks(name, names, values) {
      return this.make(Locks, 'locks', name, names, values)
    }

    multiLock(families, names) {
      return this.make(Locks, 'multiLock', families.map(({ id }) => ({ id })), names)
    }

    plainSemaphore(name) {
      return this.make(PlainSemaphore, 'plainSemaphore', name)
    }

    latch(name) {
      return this.make(CountDownLatch, 'latch', name)
    }

    stats() {
      return this.call('stats')
    }

    // The callers of this and of `name` below must not throw.
    events() {
      return this.callOr([], 'events')
    }

    close(limit) {
      return this.ask('close', limit)
    }
  }

  class Locks extends Remote {
    parts() {
      return this.call('parts')
    }

    name(name) {
      return this.callOr(name, 'name', name)
    }

    acquire() {
      return (name, wait) => {
        const [names, values] = wait === undefined ? [] : [['wait'], [wait]]
        return this.askForHold('acquireWith', name, undefined, undefined, names, values)
      }
    }

    acquireWith(...given) {
      return this.askForHoldWith('acquireWith', ...given)
    }

    reenter(...given) {
      return this.askForHoldWith('reenter', ...given)
    }

    adopt(...given) {
      return this.askForHoldWith('adopt', ...given)
    }

    steal(name) {
      return this.askForHold('steal', name)
    }
  }

  class PlainSemaphore extends Remote {
    take(permits, wait) {
      return super.take(() => this.release(permits), 'take', permits, wait)
    }
  }

  class CountDownLatch extends Remote {}

  // Calls with an answer that is no hold.
  const asks = [
    [Locks, ['owners', 'holders', 'waiters', 'forceRelease', 'permits', 'releaseToken', 'extendToken']],
    [PlainSemaphore, ['release', 'trySetPermits', 'addPermits', 'drain', 'available']],
    [CountDownLatch, ['trySetCount', 'countDown', 'count', 'wait']],
  ]
  for (const [{ prototype }, methods] of asks) {
    for (const method of methods) {
      prototype[method] = function (...given) {
        return this.ask(method, ...given)
      }
    }
  }

  return { ...backend, Border }
}

module.exports = { threadOf }
