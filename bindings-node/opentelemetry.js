'use strict'
// Metrics and spans of all clients of this thread, by OpenTelemetry. They are made of what is published on the diagnostics
// channels; docs/metrics.md lists the names.

const { SpanKind, SpanStatusCode, context, metrics, trace } = require('@opentelemetry/api')
const channels = require('./lib/channels.js')
const { statsReader } = require('./lib/names.js')
const { version } = require('./package.json')

// In seconds: from a round trip to a job that runs for an hour.
const BOUNDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600]

// Counters of a client, as docs/events.md lists them, with the names and units that they have here.
const COUNTERS = {
  acquired: ['redlatch.lock.acquired', '{level}'],
  released: ['redlatch.lock.released', '{level}'],
  lost: ['redlatch.lock.lost', '{hold}'],
  timeouts: ['redlatch.lock.timeouts', '{acquisition}'],
  cancelled: ['redlatch.lock.cancelled', '{acquisition}'],
  renewed: ['redlatch.lock.renewals', '{renewal}'],
  wakeups: ['redlatch.lock.handovers', '{message}'],
  calls: ['redlatch.client.calls', '{call}'],
  unanswered: ['redlatch.client.calls.unanswered', '{call}'],
  connects: ['redlatch.client.connects', '{connection}'],
  eventsDropped: ['redlatch.client.events.dropped', '{event}'],
}
const NOW = {
  holds: ['redlatch.lock.held', '{hold}'],
  waiting: ['redlatch.lock.waiting', '{caller}'],
}

const seconds = (began) => (performance.now() - began) / 1000
const typeOf = (error) => error?.name ?? '_OTHER'

// The counters of clients. The counters of a client that is gone stay in the sums, which never fall.
class Clients {
  #known = new Map() // what reads its counters, by a WeakRef
  #refs = new WeakMap()
  #up = new WeakMap()
  #gone = {} // sums
  #collected = new FinalizationRegistry((ref) => this.#retire(ref))

  add(client) {
    if (this.#refs.has(client)) return
    const ref = new WeakRef(client)
    this.#refs.set(client, ref)
    this.#known.set(ref, client[statsReader]())
    this.#collected.register(client, ref)
  }

  #retire(ref) {
    const read = this.#known.get(ref)
    this.#known.delete(ref)
    // Its last numbers, however short it lived.
    for (const [counter, value] of Object.entries(read())) this.#gone[counter] = (this.#gone[counter] ?? 0) + value
  }

  tell(client, kind) {
    this.add(client)
    if (kind === 'connected' || kind === 'disconnected') this.#up.set(client, kind === 'connected')
  }

  sum(counter) {
    // A client that nobody has any more holds nothing, and waits for nothing.
    let sum = counter in NOW ? 0 : (this.#gone[counter] ?? 0)
    for (const read of this.#known.values()) sum += read()[counter]
    return sum
  }

  connected() {
    return [...this.#known.keys()].filter((ref) => this.#up.get(ref.deref() ?? this)).length
  }
}

// An error that a subscriber throws would end the program.
let warned = false
const outlived =
  (subscriber) =>
  (...told) => {
    try {
      subscriber(...told)
    } catch (error) {
      if (warned) return
      warned = true
      process.emitWarning(`telemetry failed: ${error?.stack ?? error}`, 'RedlatchTelemetryWarning')
    }
  }

function instrument({ meterProvider = metrics, tracerProvider = trace } = {}) {
  const meter = meterProvider.getMeter('redlatch', version)
  const tracer = tracerProvider.getTracer('redlatch', version)
  const clients = new Clients()
  const histogram = (name, description) =>
    meter.createHistogram(name, { unit: 's', description, advice: { explicitBucketBoundaries: BOUNDS } })
  const waits = histogram('redlatch.lock.wait.duration', 'How long callers waited for a lock, error.type tells why in vain')
  const held = histogram('redlatch.lock.hold.duration', 'How long a level was held, error.type tells that it was lost')
  const events = meter.createCounter('redlatch.client.events', {
    unit: '{event}',
    description: 'Events of docs/events.md, by redlatch.event.kind',
  })
  const observed = []
  const observe = (instrument, value) => {
    const callback = (result) => result.observe(value())
    instrument.addCallback(callback)
    observed.push(() => instrument.removeCallback(callback))
  }
  for (const [counter, [name, unit]] of Object.entries(COUNTERS)) {
    observe(meter.createObservableCounter(name, { unit }), () => clients.sum(counter))
  }
  for (const [counter, [name, unit]] of Object.entries(NOW)) {
    observe(meter.createObservableUpDownCounter(name, { unit }), () => clients.sum(counter))
  }
  const up = meter.createObservableUpDownCounter('redlatch.client.connected', {
    unit: '{client}',
    description: 'Clients that reach their server, as their last event about it says',
  })
  observe(up, () => clients.connected())

  const waiting = new WeakMap() // when and where a caller began to wait, by the message of its channel
  const holding = new WeakMap() // when a hold began, and its span

  const acquire = {
    start: outlived((message) => {
      clients.add(message.client)
      waiting.set(message, { began: performance.now(), wall: Date.now(), parent: context.active() })
    }),
    asyncEnd: outlived((message) => {
      const wait = waiting.get(message)
      if (wait === undefined) return
      waiting.delete(message)
      const failed = 'error' in message ? { 'error.type': typeOf(message.error) } : {}
      waits.record(seconds(wait.began), failed, wait.parent)
      const name = { 'redlatch.lock.name': message.lockName }
      const attributes = { 'db.system.name': 'redis', 'db.operation.name': 'acquire', ...name, ...failed }
      const span = tracer.startSpan('redlatch.acquire', { kind: SpanKind.CLIENT, startTime: wait.wall, attributes }, wait.parent)
      if ('error' in message) {
        // The reason of an abort may be anything.
        span.setStatus({ code: SpanStatusCode.ERROR, message: message.error?.message })
      } else if (message.result !== null) {
        // tryAcquire() resolves to null where others have the lock.
        const hold = tracer.startSpan('redlatch.hold', { attributes: name }, wait.parent)
        holding.set(message.result, { began: performance.now(), span: hold })
      }
      span.end()
    }),
  }
  const release = {
    asyncEnd: outlived(({ hold, result, error }) => {
      const known = holding.get(hold)
      if (known === undefined) return
      holding.delete(hold)
      const failed = result === false ? 'LockLostError' : error && typeOf(error)
      const attributes = failed ? { 'error.type': failed } : {}
      held.record(seconds(known.began), attributes)
      known.span.setAttributes(attributes)
      if (failed) known.span.setStatus({ code: SpanStatusCode.ERROR })
      known.span.end()
    }),
  }
  const event = outlived(({ client, kind }) => {
    clients.tell(client, kind)
    events.add(1, { 'redlatch.event.kind': kind })
  })
  const subscriptions = [
    [channels.acquiring, acquire],
    [channels.releasing, release],
    [channels.events, event],
  ]
  for (const [channel, subscriber] of subscriptions) channel.subscribe(subscriber)
  return function stop() {
    for (const [channel, subscriber] of subscriptions) channel.unsubscribe(subscriber)
    for (const end of observed) end()
  }
}

module.exports = { instrument }
