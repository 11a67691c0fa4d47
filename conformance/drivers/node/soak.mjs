// The soak's program in Node.js; see conformance/drivers/README.md.
import { openSync, writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, LockError } from 'redlatch'
import { usage } from './usage.mjs'

const PATIENCE = 20_000 // until threads and descriptors of a closed client have to be gone
const REENTERING = 2000
const LOOK = 50 // how often one that holds looks whether it does
const WAITS = [20, 200, 2000, 20_000]

const plan = JSON.parse(process.argv[3])
const { url, file } = plan
const until = BigInt(plan.until)
const now = () => process.hrtime.bigint()
const below = end => Math.floor(Math.random() * end)
const chance = name => below(1000) < plan[name]

// Lines are in the file at once, whole: what a killed program did is known.
const history = openSync(file, 'ax')
const write = line => writeSync(history, `${line}\n`)

let attempts = 0
let granted = 0
const client = new Client(url, { watchdogLease: plan.lease, fencing: true })

function pick() {
  if (chance('hot')) return [`hot${below(plan.hot_names)}`, 'reentrant']
  if (chance('shared')) return [`shared${below(plan.shared_names)}`, chance('reads') ? 'read' : 'write']
  const number = below(plan.cold_names)
  return [`cold${number}`, number % 5 === 0 ? 'simple' : 'reentrant']
}

function pauseOf() {
  if (chance('oversleep')) return plan.lease * 1.5
  return chance('linger') ? (plan.lease * below(50)) / 100 : 0
}

// The value of a promise, or the kind of its error.
async function outcome(promise) {
  try {
    return [await promise, 'ok']
  } catch (error) {
    if (error instanceof LockError) return [undefined, error.kind]
    throw error
  }
}

async function hold(first, kind) {
  const levels = []
  if (kind !== 'simple' && chance('reenter')) {
    const [again] = await outcome(first.reenter({ wait: REENTERING }))
    if (again) levels.push(again)
  }
  // A refusal is the loss that the release will tell.
  if (chance('extend')) await outcome(first.extend(plan.lease))
  const told = first.holdCount
  let sure = 0n
  for (let rest = pauseOf(); ; rest -= LOOK) {
    const at = now()
    const kept = first.isHeld
    if (kept) sure = at
    if (rest <= 0) return { levels, told, sure, kept: kept ? 1 : 0 }
    await sleep(Math.min(rest, LOOK))
  }
}

async function release(first, levels) {
  for (const level of levels) await outcome(level.release())
  const freed = now()
  const { remaining } = first
  const until = remaining > 0 ? freed + BigInt(Math.floor(remaining)) * 1_000_000n : 0n
  const [confirmed, status] = await outcome(first.release())
  return [until, freed, confirmed === false ? 'lost' : status]
}

async function attempt(number) {
  const [key, kind] = pick()
  const name = kind === 'read' ? `${key}/read` : key
  const tried = chance('tries')
  const wait = tried ? 0 : WAITS[below(WAITS.length)]
  const lock = kind === 'read' || kind === 'write' ? client.rwLock(key)[kind] : client.lock(key, { kind })
  const called = now()
  write(`b ${number} ${name} ${called}`)
  attempts++
  const [first, status] = await outcome(lock.acquire(chance('fixed') ? { wait, lease: plan.lease } : { wait }))
  const begun = `e ${number} ${name} ${called} ${now()} ${status} ${tried ? 1 : 0}`
  if (!first) return write(`${begun} - 0 0 0 0 0 0 0 -`)
  granted++
  first.signal.addEventListener('abort', () => write(`l ${number} ${called} ${now()} ${first.signal.reason.reason}`))
  const { levels, told, sure, kept } = await hold(first, kind)
  const [until, freed, ended] = await release(first, levels)
  const held = `${first.fencingToken ?? '-'} ${levels.length + 1} ${told} ${sure} ${kept}`
  write(`${begun} ${held} ${until} ${freed} ${now()} ${ended}`)
}

async function caller(number) {
  while (now() < until) await attempt(number)
}

// In kB, when what nobody can reach is gone (node --expose-gc): what a hold needed goes in the turn after the hold. What V8
// keeps for itself besides comes and goes.
async function heap() {
  globalThis.gc()
  await sleep(LOOK)
  globalThis.gc()
  const { heapUsed, external } = process.memoryUsage()
  return (heapUsed + external) >> 10
}

const before = usage()
// Told in the hold's signal as well.
client.on('lost', () => {})
await outcome(client.lock('cold0').isLocked())
const callers = Array.from({ length: plan.callers }, (_, number) => caller(number))
await sleep(Math.max(0, Number(until - now()) / 2e6))
const middle = { memory: await heap(), attempts }
await Promise.all(callers)
const memory = await heap()
const stats = client.stats()
const unreleased = await client.close()
const end = performance.now() + PATIENCE
let left = usage()
while ((left.threads > before.threads || left.files > before.files) && performance.now() < end) {
  await sleep(50)
  left = usage()
}
console.log(JSON.stringify({
  attempts,
  granted,
  holds: stats.holds,
  waiting: stats.waiting,
  unreleased: unreleased.length,
  files: Math.max(0, left.files - before.files),
  threads: Math.max(0, left.threads - before.threads),
  memory: Math.max(0, memory - middle.memory),
  since: attempts - middle.attempts,
}))
