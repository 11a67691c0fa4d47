'use strict'
// Metrics and spans reach OpenTelemetry's own SDK; nothing is made while nobody listens.

const assert = require('node:assert/strict')
const diagnostics = require('node:diagnostics_channel')
const { readFileSync } = require('node:fs')
const { join } = require('node:path')
const { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } = require('@opentelemetry/sdk-metrics')
const { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } = require('@opentelemetry/sdk-trace-base')
const { Client, LockTimeoutError } = require('../index.js')
const { instrument } = require('../opentelemetry.js')
const { PACKAGE, collector, freshName, shared, test, until } = require('./support/index.js')

// A client of the file could tell its event `connected` within the first test.
const context = shared({ client: false })
const gc = collector()

function sdk() {
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE)
  const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 2 ** 30 })
  const meterProvider = new MeterProvider({ readers: [reader] })
  const spans = new InMemorySpanExporter()
  const tracerProvider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] })
  // The data points by the names of their metrics.
  const read = async () => {
    exporter.reset()
    await reader.forceFlush()
    const found = exporter.getMetrics().flatMap(({ scopeMetrics }) => scopeMetrics.flatMap(({ metrics }) => metrics))
    return Object.fromEntries(found.map(({ descriptor, dataPoints }) => [descriptor.name, { ...descriptor, dataPoints }]))
  }
  const stop = instrument({ meterProvider, tracerProvider })
  return { read, spans: () => spans.getFinishedSpans(), stop: () => (stop(), meterProvider.shutdown()) }
}

const sum = ({ dataPoints }, attributes = {}) =>
  dataPoints
    .filter((point) => Object.entries(attributes).every(([name, value]) => point.attributes[name] === value))
    .reduce((all, { value }) => all + (value.count ?? value), 0)

test('waits, holds and counters are measured', async () => {
  const telemetry = sdk()
  const client = await Client.connect(context.url)
  const lock = client.lock(freshName())
  const first = await lock.acquire()
  const second = lock.acquire()
  const began = performance.now()
  await assert.rejects(lock.acquire({ wait: 10 }), LockTimeoutError)
  assert.equal(sum((await telemetry.read())['redlatch.lock.held']), 1)
  const waited = (performance.now() - began) / 1000
  await first.release()
  await (await second).release()

  const metrics = await telemetry.read()
  const waits = metrics['redlatch.lock.wait.duration']
  assert.equal(waits.unit, 's')
  assert.deepEqual([sum(waits), sum(waits, { 'error.type': 'LockTimeoutError' })], [3, 1])
  // The second caller waited until the first one released it.
  assert.ok(Math.max(...waits.dataPoints.map(({ value }) => value.max)) >= waited)
  assert.equal(sum(metrics['redlatch.lock.hold.duration']), 2)
  assert.equal(sum(metrics['redlatch.lock.acquired']), 2)
  assert.equal(sum(metrics['redlatch.lock.timeouts']), 1)
  assert.deepEqual([sum(metrics['redlatch.lock.held']), sum(metrics['redlatch.client.connected'])], [0, 1])
  assert.equal(sum(metrics['redlatch.client.events'], { 'redlatch.event.kind': 'connected' }), 1)

  const spans = telemetry.spans()
  assert.deepEqual(spans.map(({ name }) => name).sort(), [
    ...Array(3).fill('redlatch.acquire'),
    ...Array(2).fill('redlatch.hold'),
  ])
  for (const { attributes } of spans) assert.equal(attributes['redlatch.lock.name'], lock.name)
  assert.equal(spans.find(({ status }) => status.code === 2).attributes['error.type'], 'LockTimeoutError')
  await telemetry.stop()
  await client.close()
})

test('a try that others were before is an answer, and no error', async () => {
  const telemetry = sdk()
  const client = await Client.connect(context.url)
  const lock = client.lock(freshName())
  await lock.using(async () => assert.equal(await lock.tryAcquire(), null))
  await telemetry.read()
  const spans = telemetry.spans()
  assert.deepEqual(spans.map(({ name }) => name).sort(), [...Array(2).fill('redlatch.acquire'), 'redlatch.hold'])
  assert.deepEqual(spans.filter(({ status, attributes }) => status.code === 2 || 'error.type' in attributes), [])
  await telemetry.stop()
  await client.close()
})

test('a loss is told with the end of its hold', async () => {
  const telemetry = sdk()
  const client = await Client.connect(context.url)
  const hold = await client.lock(freshName()).acquire()
  await context.redis.send('DEL', hold.name)
  await until(() => !hold.isHeld)
  assert.equal(await hold.release(), false)
  const metrics = await telemetry.read()
  assert.equal(sum(metrics['redlatch.lock.lost']), 1)
  assert.equal(sum(metrics['redlatch.lock.hold.duration'], { 'error.type': 'LockLostError' }), 1)
  assert.equal(telemetry.spans().find(({ name }) => name === 'redlatch.hold').status.code, 2)
  await telemetry.stop()
  await client.close()
})

test('counters outlive their client, also if nothing was read before', async () => {
  const telemetry = sdk()
  const live = async () => {
    const client = await Client.connect(context.url)
    await client.lock(freshName()).using(() => {})
    await client.close()
    return new WeakRef(client)
  }
  const gone = await live()
  await until(() => (gc(), gone.deref() === undefined))
  const acquired = async () => sum((await telemetry.read())['redlatch.lock.acquired'])
  assert.equal(await acquired(), 1)
  const other = await Client.connect(context.url)
  await other.lock(freshName()).using(() => {})
  assert.equal(await acquired(), 2)
  await telemetry.stop()
  await other.close()
})

test('a provider that fails does not end the program, and is told of once', async (t) => {
  const warnings = []
  const listen = (warning) => warnings.push(warning)
  process.on('warning', listen)
  t.after(() => process.off('warning', listen))
  const fail = () => {
    throw new Error('telemetry')
  }
  const metric = { record: fail, add: fail, addCallback() {}, removeCallback() {} }
  const maker = new Proxy({}, { get: () => () => metric })
  const stop = instrument({ meterProvider: { getMeter: () => maker }, tracerProvider: { getTracer: () => ({ startSpan: fail }) } })
  const client = new Client(context.url)
  const told = new Promise((resolve) => client.once('event', resolve)) // that it is connected
  await client.lock(freshName()).using(() => {})
  await told
  await client.lock(freshName()).using(() => {})
  await until(() => warnings.length > 0)
  assert.deepEqual(warnings.map(({ name }) => name), ['RedlatchTelemetryWarning'])
  stop()
  await client.close()
})

test('every counter is a metric, by the names that Python has', async () => {
  const telemetry = sdk()
  const client = await Client.connect(context.url)
  await client.lock(freshName()).using(() => {})
  const python = readFileSync(join(PACKAGE, '..', 'bindings-python', 'python', 'redlatch', 'otel', '__init__.py'), 'utf8')
  const named = new Set(python.match(/(?<=")redlatch\.(lock|client)\.[\w.]+(?=")/g))
  const names = Object.keys(await telemetry.read())
  assert.deepEqual(names.filter((name) => !named.has(name)), [])
  assert.deepEqual([...named].filter((name) => !names.includes(name)), ['redlatch.lock.name'])
  // Two histograms, the events and the connections are not counters of a client.
  assert.equal(names.length, Object.keys(client.stats()).length + 4)
  await telemetry.stop()
  await client.close()
})

test('an abort with anything is a failed wait', async () => {
  const telemetry = sdk()
  const client = await Client.connect(context.url)
  const hold = await client.lock(freshName()).acquire()
  for (const reason of [null, undefined, 'enough']) {
    const controller = new AbortController()
    const waiting = client.lock(hold.name).acquire({ signal: controller.signal })
    controller.abort(reason)
    await assert.rejects(waiting, () => true)
  }
  await hold.release()
  assert.equal(sum((await telemetry.read())['redlatch.lock.wait.duration']), 4)
  await telemetry.stop()
  await client.close()
})

test('nothing is published where nobody listens any more', async () => {
  const telemetry = sdk()
  await telemetry.stop()
  assert.equal(diagnostics.tracingChannel('redlatch:acquire').hasSubscribers, false)
  assert.equal(diagnostics.tracingChannel('redlatch:release').hasSubscribers, false)
  const client = await Client.connect(context.url)
  await client.lock(freshName()).using(() => {})
  assert.deepEqual(telemetry.spans(), [])
  await client.close()
})
