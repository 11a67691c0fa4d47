'use strict'
// Drives the WebAssembly module, and is to lib/ what the native part is: the same functions with the same results. It decides
// nothing. A platform gives it time, timers, random bytes and sockets; lib/wasm/node.js has those of Node.js.

const { Table } = require('../table.js')
const { Arguments, Records, decoder } = require('./bytes.js')
const { connectByHttp } = require('./http.js')

// The numbers of the interface: bindings-wasm/src/bytes.rs has the same, and a test compares them. Records of the module.
const [CONNECT, WRITE, CLOSE, DONE, FAILED, LOST, EVENTS, GONE, WAKE] = [1, 2, 3, 4, 5, 6, 7, 8, 9]
// Values of a call that has succeeded.
const [NONE, FLAG, TOKEN, HOLDERS, NAMES, GRANTED, PERMITS, NUMBER, PARTS] = [0, 1, 2, 3, 4, 5, 6, 7, 8]
// Changes of a plain semaphore or a latch.
const [RELEASE, SET_PERMITS, ADD_PERMITS, DRAIN, SET_COUNT, COUNT_DOWN] = [0, 1, 2, 3, 4, 5]
const [SEMAPHORE, LATCH] = [0, 1]
// For whom a lock is acquired.
const [ONCE, TASK, EXPLICIT] = [0, 1, 2]
// Questions about a lock.
const [OWNERS, PROCESSES, QUEUE] = [0, 1, 2]

// A timer that fires later than this, in microseconds, had to wait for a blocked event loop.
const LATE = 50_000

const UNREACHABLE = 'unreachable'

// The program is told these where sockets and timers belong to requests.
const REMEDY = 'make one in each request: await using client = await Client.connect(url)'
const OUTSIDE = `a client was made outside of a request, where there are no connections; ${REMEDY}`
const ELSEWHERE = `another request made this client, and its connections are of no use in this one; ${REMEDY}`

const NO_SOCKETS = 'there are no sockets here; give connect, a function that opens a stream to the server, or the https:// URL of Redis over HTTP'
const NO_FETCH = 'the URL is of HTTP, and there is no fetch() here; give the redis:// or rediss:// URL of the server'
const NO_STREAM = 'connect is given, and the URL is of HTTP, which goes by fetch(); leave it out'

const camel = 1

// The tables of errors, lost reasons and options, as JSON.
function tablesOf(module) {
  const { exports } = new WebAssembly.Instance(module)
  exports.redlatch_spelling(camel)
  const length = exports.redlatch_tables()
  return decoder.decode(new Uint8Array(exports.memory.buffer, exports.redlatch_output(), length))
}

// One instance of the module with its clients. A trap ends it: nothing in it can be trusted any more. Its calls fail, its
// holds are lost, and the next client gets another instance.
class Instance {
  #exports
  #platform
  #part
  #given = new Arguments()
  #records = new Records()
  #sockets = new Map() // by the number of the connection
  #openers = new Map() // by the number of the client: what opens its streams
  #timer
  #timerAt
  #flushing = false
  #failure // once it has trapped
  isHere // tells whether its sockets and timers may be used now

  constructor(module, platform, part, isHere = () => true) {
    // A copy: a test puts a function that traps in the place of one of these.
    this.#exports = { ...new WebAssembly.Instance(module).exports }
    this.#platform = platform
    this.#part = part
    this.isHere = isHere
    this.#exports.redlatch_spelling(camel)
  }

  get isDead() {
    return this.#failure !== undefined
  }

  get memory() {
    return this.#exports.memory.buffer.byteLength
  }

  replace(name, exported) {
    this.#exports[name] = exported
  }

  get given() {
    this.#given.clear()
    return this.#given
  }

  now() {
    return this.#platform.now()
  }

  // Calls a function of the module with `given` and these numbers. Returns the failure or the names that are its own answer.
  call(name, ...numbers) {
    if (this.isDead) return this.#failure
    const { memory } = this.#exports
    try {
      if (this.#given.length > 0) this.#given.moveTo(memory, this.#exports.redlatch_input(this.#given.length))
      const length = this.#exports[name](...numbers)
      return length === 0 ? undefined : this.#read(this.#records.read(memory, this.#exports.redlatch_output(), length))
    } catch (error) {
      return this.#die(error)
    }
  }

  // Nothing, or why the client has no plain semaphore or latch with this name.
  counterName(client, counter, name) {
    this.given.byte(counter).text(name)
    return this.call('redlatch_counter_name', client)
  }

  // Asks something that has no records.
  ask(name, otherwise, ...numbers) {
    if (this.isDead) return otherwise
    try {
      return this.#exports[name](...numbers)
    } catch (error) {
      this.#die(error)
      return otherwise
    }
  }

  #read(records) {
    let own
    while (records.more) {
      const kind = records.byte()
      const id = records.number()
      switch (kind) {
        case CONNECT:
          this.#connect(id, {
            client: records.number(),
            ...spoken(records.byte()),
            host: records.text(),
            port: records.number(),
            keepAlive: records.number(),
          })
          break
        case WRITE:
          this.#sockets.get(id)?.write(records.bytes())
          break
        case CLOSE:
          this.#sockets.get(id)?.destroy()
          this.#sockets.delete(id)
          break
        case DONE: {
          const [held, value] = valueOf(records)
          if (id === 0) own = value
          else this.#part.done(id, value, held)
          break
        }
        case FAILED: {
          const failure = failureOf(records)
          if (id === 0) own = failure
          else this.#part.failed(id, failure)
          break
        }
        case LOST:
          this.#part.lost(id, records.number())
          break
        case EVENTS:
          this.#part.eventful(id)
          break
        case GONE:
          this.#platform.forgetTls(id)
          this.#openers.delete(id)
          break
        case WAKE:
          this.#wakeAt(id)
          break
      }
    }
    return own
  }

  #connect(conn, place) {
    const heard = {
      opened: () => {
        if (!this.#sockets.has(conn)) return
        this.given.whole(this.#platform.random())
        this.call('redlatch_opened', conn, this.now())
      },
      received: (bytes) => {
        if (!this.#sockets.has(conn)) return
        this.given.raw(bytes)
        this.call('redlatch_received', conn, this.now())
      },
      // `fault`: what is wrong with TLS, as a number; 255 for anything else.
      closed: (text, fault = 255) => {
        if (!this.#sockets.delete(conn)) return
        this.given.byte(fault).text(text)
        this.call('redlatch_closed', conn, this.now())
      },
    }
    this.#sockets.set(conn, this.#begin(place, heard))
    if (!this.#part.isAwaited) this.#sockets.get(conn).unref()
  }

  #begin(place, heard) {
    if (place.http) return connectByHttp(place, heard, this.#platform.soon)
    const open = this.#openers.get(place.client)
    return open === undefined ? this.#platform.connect(place, heard) : this.#platform.connectBy(open, place, heard)
  }

  // The connections of a client are streams that the program opens.
  openBy(client, open) {
    this.#openers.set(client, open)
  }

  // Writes what calls have left, once for all that are made in one go: they share commands then.
  flushSoon() {
    if (this.#flushing || this.isDead || !this.isHere()) return
    this.#flushing = true
    this.#platform.soon(() => this.flush())
  }

  flush() {
    this.#flushing = false
    this.call('redlatch_flush', this.now())
  }

  // Sets the timer for what comes next. One that fires too early does no harm.
  #wakeAt(at) {
    this.#timer?.clear()
    this.#timerAt = at
    const wait = Math.max(0, Math.ceil((at - this.now()) / 1000))
    // setTimeout() takes no longer time.
    this.#timer = this.#platform.timer(() => this.#due(), Math.min(wait, 0x7fffffff))
    if (!this.#part.isAwaited) this.#timer.unref()
  }

  // Timers come before sockets: an answer may lie there that came in time, while the event loop was blocked. It is read first.
  #due() {
    if (this.now() - this.#timerAt > LATE) this.#timer = this.#platform.afterSockets(() => this.#wake())
    else this.#wake()
  }

  #wake() {
    this.#timer = undefined
    this.call('redlatch_wake', this.now())
  }

  // Whether sockets and timer keep the program alive.
  keepAlive(yes) {
    for (const each of [...this.#sockets.values(), this.#timer]) {
      if (yes) each?.ref()
      else each?.unref()
    }
  }

  #die(error) {
    this.#failure = this.#part.broken(this, `${error}`)
    this.#timer?.clear()
    for (const socket of this.#sockets.values()) socket.destroy()
    this.#sockets.clear()
    this.#openers.clear()
    return this.#failure
  }
}

// The parts of the byte that says how a connection is made.
const spoken = (byte) => ({ tls: (byte & 1) !== 0, http: (byte & 2) !== 0 })

function processOf(records) {
  return { clientName: records.text(), language: records.text(), pid: records.number(), host: records.text() }
}

function holderOf(records) {
  const [owner, count, remaining] = [records.text(), records.number(), records.number()]
  const process = records.byte() === 1 ? processOf(records) : null
  return { owner, count, remaining: remaining < 0 ? null : remaining, process }
}

function partOf(records) {
  const [owner, token] = [records.text(), records.whole()]
  return token === 0n ? { owner } : { owner, fencingToken: token }
}

// Whether a hold begins, and the value of a call.
function valueOf(records) {
  switch (records.byte()) {
    case NONE:
      return [false, undefined]
    case FLAG:
      return [false, records.byte() === 1]
    case TOKEN:
      return [true, records.whole()]
    case GRANTED:
      return [true, undefined]
    case HOLDERS:
      return [false, Array.from({ length: records.number() }, () => holderOf(records))]
    case NAMES:
      return [false, Array.from({ length: records.number() }, () => records.text())]
    case PERMITS:
      return [false, { available: records.number(), limit: records.number() }]
    case NUMBER:
      return [false, records.number()]
    case PARTS:
      return [true, Array.from({ length: records.number() }, () => partOf(records))]
  }
}

function failureOf(records) {
  const failure = { kind: records.number(), message: records.text(), listsOptions: records.byte() === 1 }
  if (records.byte() === 1) failure.lockName = records.text()
  const reason = records.number()
  if (reason !== 0) failure.reason = reason
  // The module is told of an error of a socket, and repeats it, by its text only.
  const [message, code] = /\b(?:connect|getaddrinfo|read|write) (E[A-Z_]+)[^;]*/.exec(failure.message) ?? []
  if (message !== undefined) failure.cause = { message, code }
  return failure
}

// Takes the native part's place: `Border` and the tables.
function backendOf(module, platform) {
  const tables = tablesOf(module)
  const { errors, reasons } = JSON.parse(tables)
  const kindOf = (name) => errors.find((row) => row.name === name).number
  const unreachable = reasons.find((row) => row.name === UNREACHABLE).number
  const internal = kindOf('internal')
  const refused = (message) => ({ kind: kindOf('invalid_argument'), message, listsOptions: false })

  // Drops from the module all that a garbage-collected object had there.
  const collected = new FinalizationRegistry((drop) => drop())

  class Border {
    #drain
    #instance
    #last = 0
    #asked = new Table() // the instance of each call without an answer
    #held = new Table() // the instance of each hold
    #taking = new Map() // by the number of a call that takes permits and has no answer: what gives them back
    #waiting = 0
    #batch
    #ended = false
    #limits = new Map() // how long the end of the program may take for each client

    constructor(drain) {
      this.#drain = drain
    }

    // ---- what instances tell ----

    get isAwaited() {
      return this.#waiting > 0
    }

    #told() {
      if (this.#batch === undefined) {
        this.#batch = { done: [] }
        // At its end the program is told nothing: a rejection that nobody handles would change its exit code.
        if (!this.#ended) platform.soon(this.#drain)
      }
      return this.#batch
    }

    done(id, value, held) {
      if (held) this.#held.set(id, this.#asked.get(id))
      const giveBack = this.#taking.get(id)
      this.#answered(id)
      const batch = this.#told()
      if (giveBack !== undefined) (batch.taken ??= new Map()).set(id, giveBack)
      if (value === undefined) batch.done.push(-id)
      else batch.done.push(id, value)
    }

    failed(id, failure) {
      this.#answered(id)
      const batch = this.#told()
      ;(batch.failed ??= []).push(id, failure)
    }

    lost(id, reason) {
      // A Hold is made some ticks after its grant. The loss comes after it.
      if (this.#batch?.done.length > 0) return void platform.afterSockets(() => this.lost(id, reason))
      const batch = this.#told()
      ;(batch.lost ??= []).push(id, reason)
    }

    eventful(client) {
      const batch = this.#told()
      ;(batch.eventful ??= []).push(client)
    }

    // An instance has trapped.
    broken(instance, text) {
      const message = `the WebAssembly part of redlatch has failed: ${text}; its holds count as lost, open a new client`
      const failure = { kind: internal, message, listsOptions: false }
      this.#held.forEach((id, of) => of === instance && this.lost(id, unreachable))
      const asked = []
      this.#asked.forEach((id, of) => of === instance && asked.push(id))
      for (const id of asked) this.failed(id, failure)
      for (const [client, { instance: of }] of this.#limits) if (of === instance) platform.forgetTls(client)
      return failure
    }

    #answered(id) {
      this.#taking.delete(id)
      if (this.#asked.take(id) === undefined) return
      this.#waiting -= 1
      if (this.#waiting === 0) this.#instance?.keepAlive(false)
    }

    // ---- for lib/ ----

    get instance() {
      if (this.#instance === undefined || this.#instance.isDead) this.#instance = new Instance(module, platform, this)
      return this.#instance
    }

    nextId() {
      this.#last += 1
      return this.#last
    }

    newContext() {
      return this.nextId()
    }

    get isWasm() {
      return true
    }

    drain() {
      return () => {
        const batch = this.#batch ?? { done: [] }
        this.#batch = undefined
        return batch
      }
    }

    // `connect`: opens a stream, in the place of a socket.
    client(url, names, values, connect) {
      // Where sockets and timers belong to requests, each client has its own: an instance has one timer, and writes to all its sockets.
      const isHere = platform.request?.()
      if (platform.request !== undefined && isHere === undefined) return refused(OUTSIDE)
      const instance = isHere === undefined ? this.instance : new Instance(module, platform, this, isHere)
      const id = this.nextId()
      const { given } = instance
      for (let count = 0; count < 3; count += 1) given.whole(platform.random())
      const { language, pid, host } = platform.program
      given.text(language).number(pid).text(host).optional(url).optional(platform.url()).options(names, values)
      const told = instance.call('redlatch_open', id)
      if (!Array.isArray(told)) return told
      const [scheme, ca, cert, key, exitLimit] = told
      const problem = problemOf(id, scheme, { ca, cert, key }, connect)
      if (problem !== undefined) {
        instance.call('redlatch_drop_client', id, instance.now())
        return refused(problem)
      }
      if (connect !== undefined) instance.openBy(id, connect)
      this.#limits.set(id, { instance, limit: Number(exitLimit) })
      return new Client(this, instance, id)
    }

    // Asks for something with an answer: its number, or why it is not even asked.
    ask(instance, name, ...numbers) {
      return this.#ask(undefined, instance, name, numbers)
    }

    // Asks for permits. `giveBack` is for those that have come before the caller is told, and gives up.
    take(giveBack, instance, name, ...numbers) {
      return this.#ask(giveBack, instance, name, numbers)
    }

    #ask(giveBack, instance, name, numbers) {
      if (!instance.isHere()) return refused(ELSEWHERE)
      const id = this.nextId()
      // Noted first, because the answer may come at once.
      if (giveBack !== undefined) this.#taking.set(id, giveBack)
      this.#asked.set(id, instance)
      this.#waiting += 1
      if (this.#waiting === 1) instance.keepAlive(true)
      const failure = instance.call(name, id, ...numbers, instance.now())
      if (failure !== undefined) {
        this.#answered(id)
        return failure
      }
      instance.flushSoon()
      return id
    }

    cancel(id) {
      const instance = this.#asked.get(id) ?? this.#held.get(id)
      // Permits that were taken, and the caller was not told yet.
      if (instance === undefined) return void this.#batch?.taken?.get(id)?.()
      this.#answered(id)
      this.#held.take(id)
      instance.call('redlatch_cancel', id, instance.now())
      instance.flushSoon()
    }

    #ofHold(id) {
      return this.#held.get(id) ?? this.instance
    }

    isHeld(id) {
      const instance = this.#ofHold(id)
      return instance.ask('redlatch_is_held', 0, id, instance.now()) === 1
    }

    check(id) {
      const instance = this.#ofHold(id)
      instance.given
      return instance.call('redlatch_check', id, instance.now())
    }

    remaining(id) {
      const instance = this.#ofHold(id)
      return instance.ask('redlatch_remaining', 0, id, instance.now())
    }

    holdCount(id) {
      return this.#ofHold(id).ask('redlatch_count', 0, id)
    }

    owner(id) {
      const told = this.#ofHold(id).call('redlatch_owner', id)
      return Array.isArray(told) ? told[0] : ''
    }

    release() {
      return (hold) => {
        const instance = this.#ofHold(hold)
        instance.given
        const started = this.ask(instance, 'redlatch_release', hold)
        // A call that was refused has released nothing.
        if (instance.isHere()) this.#held.take(hold)
        return started
      }
    }

    extend(hold, lease) {
      const instance = this.#ofHold(hold)
      instance.given.value(lease)
      return this.ask(instance, 'redlatch_extend', hold)
    }

    abandon(hold) {
      const instance = this.#ofHold(hold)
      const known = instance.ask('redlatch_abandon', 0, hold, instance.now()) === 1
      this.#held.take(hold)
      instance.flushSoon()
      return known
    }

    forget(client) {
      this.#limits.delete(client)
    }

    watchSignals() {
      // The host is told of no signal that the program does not handle.
    }

    // Closes each client within its limit for the end of the program. Returns the numbers of these calls.
    closeAll() {
      const calls = []
      for (const [client, { instance, limit }] of this.#limits) {
        if (limit === 0 || instance.isDead) continue
        const id = this.nextId()
        instance.given.value(limit)
        instance.call('redlatch_close', id, client, instance.now())
        instance.flushSoon()
        calls.push(id)
      }
      return calls
    }

    // The program ends, and nothing can be waited for: what is held is released by what is written now.
    end() {
      this.#ended = true
      // An acquisition that waits to be written goes before the releases: behind that of another client it would get the lock.
      this.#writeAll()
      this.closeAll()
      this.#writeAll()
    }

    #writeAll() {
      for (const { instance } of this.#limits.values()) if (!instance.isDead) instance.call('redlatch_end', instance.now())
    }
  }

  // Why a client cannot connect by what it was given.
  function problemOf(client, scheme, pems, connect) {
    if (scheme.startsWith('http')) {
      if (typeof fetch !== 'function') return NO_FETCH
      if (connect !== undefined) return NO_STREAM
      return unused(pems, 'the URL is of HTTP', 'leave it out: fetch() trusts the certificates that its platform trusts')
    }
    if (connect === undefined && platform.connect === undefined) return NO_SOCKETS
    if (scheme === '') return undefined
    if (connect === undefined) return platform.prepareTls(client, pems)
    return unused(pems, 'connect is, too', 'let the stream that connect opens be encrypted')
  }

  class Client {
    #border
    #instance
    id
    drop

    constructor(border, instance, id) {
      this.#border = border
      this.#instance = instance
      this.id = id
      this.drop = () => {
        border.forget(id)
        instance.call('redlatch_drop_client', id, instance.now())
        instance.flushSoon()
      }
      collected.register(this, this.drop)
    }

    ready() {
      this.#instance.given
      return this.#border.ask(this.#instance, 'redlatch_ready', this.id)
    }

    locks(name, names, values) {
      const family = this.#border.nextId()
      this.#instance.given.text(name).options(names, values)
      return this.#instance.call('redlatch_locks', family, this.id) ?? new Locks(this.#border, this.#instance, family, this)
    }

    multiLock(families, names) {
      const id = this.#border.nextId()
      const { given } = this.#instance
      families.forEach((family, at) => given.number(family.id).text(names[at]))
      const told = this.#instance.call('redlatch_multi', id, this.id)
      return Array.isArray(told) ? new Locks(this.#border, this.#instance, id, this, told) : told
    }

    plainSemaphore(name) {
      return this.#instance.counterName(this.id, SEMAPHORE, name) ?? new PlainSemaphore(this.#border, this.#instance, this, name)
    }

    latch(name) {
      return this.#instance.counterName(this.id, LATCH, name) ?? new CountDownLatch(this.#border, this.#instance, this, name)
    }

    stats() {
      const told = this.#instance.call('redlatch_stats', this.id)
      if (!Array.isArray(told)) return told
      return pairs(told, 2).map(([name, value]) => ({ name, value: Number(value) }))
    }

    events() {
      const told = this.#instance.call('redlatch_events', this.id)
      if (!Array.isArray(told)) return []
      return pairs(told, 4).map(([kind, level, lockName, text]) =>
        lockName === '' ? { kind, level, text } : { kind, level, lockName, text },
      )
    }

    close(limit) {
      const { given } = this.#instance
      if (limit !== undefined) given.value(limit)
      return this.#border.ask(this.#instance, 'redlatch_close', this.id)
    }
  }

  class Counter {
    #border
    #instance
    #client // as long as there is a counter there is its client
    #name

    constructor(border, instance, client, name) {
      this.#border = border
      this.#instance = instance
      this.#client = client
      this.#name = name
    }

    drop() {
      // The module has nothing of it.
    }

    // The arguments of a call: the name, what is written behind it, and how long to wait if that is limited. `giveBack` is for
    // one that takes permits.
    ask(call, write, wait, giveBack) {
      const given = this.#instance.given.text(this.#name)
      write?.(given)
      if (wait !== undefined) given.value(wait)
      if (giveBack !== undefined) return this.#border.take(giveBack, this.#instance, call, this.#client.id)
      return this.#border.ask(this.#instance, call, this.#client.id)
    }

    change(what, number = 0) {
      return this.ask('redlatch_change', (given) => given.byte(what).number(number))
    }

    read(counter) {
      return this.ask('redlatch_read', (given) => given.byte(counter))
    }
  }

  class PlainSemaphore extends Counter {
    take(permits, wait) {
      return this.ask('redlatch_take', (given) => given.number(permits), wait, () => this.release(permits))
    }

    release(permits) {
      return this.change(RELEASE, permits)
    }

    trySetPermits(permits) {
      return this.change(SET_PERMITS, permits)
    }

    addPermits(permits) {
      return this.change(ADD_PERMITS, permits)
    }

    drain() {
      return this.change(DRAIN)
    }

    available() {
      return this.read(SEMAPHORE)
    }
  }

  class CountDownLatch extends Counter {
    trySetCount(count) {
      return this.change(SET_COUNT, count)
    }

    countDown(by) {
      return this.change(COUNT_DOWN, by)
    }

    count() {
      return this.read(LATCH)
    }

    wait(wait) {
      return this.ask('redlatch_await', undefined, wait)
    }
  }

  // Locks of a client with the same options.
  class Locks {
    #border
    #instance
    id
    client // as long as there are locks there is their client
    drop
    #parts

    constructor(border, instance, id, client, parts = []) {
      this.#border = border
      this.#instance = instance
      this.id = id
      this.client = client
      this.#parts = parts
      this.drop = () => {
        instance.call('redlatch_drop_locks', id)
        instance.flushSoon()
      }
      collected.register(this, this.drop)
    }

    parts() {
      return this.#parts
    }

    name(name) {
      // Its holds are told of their loss, by name.
      if (this.#instance.isDead) return name
      this.#instance.given.text(name)
      const told = this.#instance.call('redlatch_name', this.id)
      return Array.isArray(told) ? told[0] : told
    }

    acquire() {
      const [border, instance, id] = [this.#border, this.#instance, this.id]
      return (name, wait) => {
        const given = instance.given.byte(ONCE).number(0).text(name)
        if (wait !== undefined) given.text('wait').value(wait)
        return border.ask(instance, 'redlatch_acquire', id)
      }
    }

    acquireWith(name, key, context, names, values) {
      const given = this.#instance.given
      if (key !== undefined) given.byte(EXPLICIT).whole(key)
      else if (context !== undefined) given.byte(TASK).whole(BigInt(context))
      else given.byte(ONCE).number(0)
      given.text(name).options(names, values)
      return this.#border.ask(this.#instance, 'redlatch_acquire', this.id)
    }

    adopt(name, token, names, values) {
      this.#instance.given.text(token).byte(ONCE).number(0).text(name).options(names, values)
      return this.#border.ask(this.#instance, 'redlatch_adopt', this.id)
    }

    steal(name) {
      this.#instance.given.text(name)
      return this.#border.ask(this.#instance, 'redlatch_steal', this.id)
    }

    reenter(hold, names, values) {
      this.#instance.given.options(names, values)
      return this.#border.ask(this.#instance, 'redlatch_reenter', this.id, hold)
    }

    owners(name) {
      return this.#inspect(name, OWNERS)
    }

    holders(name) {
      return this.#inspect(name, PROCESSES)
    }

    waiters(name) {
      return this.#inspect(name, QUEUE)
    }

    #inspect(name, what) {
      this.#instance.given.text(name).byte(what)
      return this.#border.ask(this.#instance, 'redlatch_inspect', this.id)
    }

    forceRelease(name) {
      this.#instance.given.text(name)
      return this.#border.ask(this.#instance, 'redlatch_force', this.id)
    }

    permits(name, limit) {
      const given = this.#instance.given.text(name)
      if (limit !== undefined) given.value(limit)
      return this.#border.ask(this.#instance, 'redlatch_permits', this.id)
    }

    releaseToken(name, token) {
      this.#instance.given.text(name).text(token)
      return this.#border.ask(this.#instance, 'redlatch_by_token', this.id)
    }

    extendToken(name, token, lease) {
      this.#instance.given.text(name).text(token).value(lease)
      return this.#border.ask(this.#instance, 'redlatch_by_token', this.id)
    }
  }

  return {
    Border,
    isWasm: true,
    isPerRequest: platform.request !== undefined,
    tables: () => tables,
  }
}

// Why these certificates are refused.
function unused(pems, why, remedy) {
  const [name] = Object.entries(pems).find(([, pem]) => pem !== '') ?? []
  if (name === undefined) return undefined
  return `tls${name[0].toUpperCase()}${name.slice(1)} is given, and ${why}; ${remedy}`
}

function pairs(list, size) {
  return Array.from({ length: list.length / size }, (_, at) => list.slice(at * size, (at + 1) * size))
}

module.exports = { backendOf }
