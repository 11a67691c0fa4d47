// Counts what a pair costs a program that has no telemetry, before and after it had some, for benches/guard.py: function calls
// of diagnostics_channel and of our part for OpenTelemetry, which V8 counts for coverage. Prints the greater number.
import { Session } from 'node:inspector/promises'
import { parseArgs } from 'node:util'
import { Client } from 'redlatch'
import { instrument } from 'redlatch/opentelemetry'

const { values: args } = parseArgs({ options: { url: { type: 'string' } } })
const PAIRS = 100

const client = await Client.connect(args.url)
const lock = client.lock('bench:1')
const session = new Session()
session.connect()
await session.post('Profiler.enable')
await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })

async function pairs() {
  for (let pair = 0; pair < PAIRS; pair++) {
    const hold = await lock.acquire()
    await hold.release()
  }
}

// The coverage so far is forgotten by being taken.
const covered = async () => (await session.post('Profiler.takePreciseCoverage')).result

async function calls() {
  await pairs()
  await covered()
  await pairs()
  const telemetry = (await covered()).filter(({ url }) => /diagnostics_channel|opentelemetry/.test(url))
  return telemetry.flatMap(({ functions }) => functions).reduce((sum, { ranges }) => sum + ranges[0].count, 0) / PAIRS
}

const before = await calls()
const stop = instrument()
await pairs()
stop()
const after = await calls()
console.log(Math.max(before, after))
await client.close()
