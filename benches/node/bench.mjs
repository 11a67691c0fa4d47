// The workloads W1 to W5 for Node.js; see benches/README.md.
import { readFileSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Client } from 'redlatch'

const text = value => ({ type: 'string', default: value })
const { values: args } = parseArgs({
  options: {
    kind: text('reentrant'), limit: text('8'), names: text('8'), workload: text('W1'), url: text('redis://127.0.0.1:6379'), seconds: text('3'), warmup: text('0.3'),
    tasks: text('64'), locks: text('10000'), 'lease-ms': text('30000'), 'cs-us': text('1000'), 'poll-ms': text(''),
    id: text(''), 'ts-file': text(''), name: text('bench'), barrier: { type: 'boolean', default: false },
  },
})
const tasks = Array.from({ length: Number(args.tasks) }, (_, number) => number)

function status(name) {
  const line = readFileSync('/proc/self/status', 'utf8').split('\n').find(each => each.startsWith(`${name}:`))
  return Number(line.split(/\s+/)[1])
}

// A time in which callers go on.
function windowOf(seconds) {
  const end = performance.now() + seconds * 1000
  return { isOpen: () => performance.now() < end, left: () => Math.max(0, end - performance.now()) }
}

// The time in which a workload counts.
async function open() {
  if (args.barrier) {
    console.log('READY')
    const input = createInterface({ input: process.stdin })
    await input.question('')
    input.close()
  }
  const cpu = process.cpuUsage()
  const begun = performance.now()
  const used = () => {
    const { user, system } = process.cpuUsage(cpu)
    return { seconds: (performance.now() - begun) / 1000, cpu_s: (user + system) / 1e6 }
  }
  return {
    ...windowOf(Number(args.seconds)),
    used,
    // Unless `until` tells what was used until an earlier moment, what was used until now.
    report(figures, until = used()) {
      console.log(JSON.stringify({ ...figures, ...until }))
    },
  }
}

function share(values, part) {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.round((sorted.length - 1) * part)] ?? 0
}

// Which shares of all times are at most as long as each of the quantiles.
const shares = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1]

const sum = values => values.reduce((total, value) => total + value, 0)

function jain(shares) {
  const squares = sum(shares.map(value => value * value))
  return squares ? sum(shares) ** 2 / (shares.length * squares) : 0
}

const isSemaphore = args.kind.endsWith('semaphore')
const limit = Number(args.limit)
const options = { watchdogLease: Number(args['lease-ms']), ...(!isSemaphore && args.kind !== 'multi' && { kind: args.kind }) }
const client = await Client.connect(args.url, options)
const nameOf = name => `${args.name}:${name}`
async function lockOf(name) {
  if (args.kind === 'semaphore') return client.semaphore(nameOf(name), limit)
  if (args.kind === 'multi') return client.multiLock(Array.from({ length: Number(args.names) }, (_, each) => nameOf(`${name}:${each}`)))
  if (!isSemaphore) return client.lock(nameOf(name))
  const semaphore = client.plainSemaphore(nameOf(name))
  await semaphore.trySetPermits(limit)
  return semaphore
}

// The first argument of a plain semaphore is the number of permits.
function acquireWithin(lock, wait) {
  return args.kind === 'plain-semaphore' ? lock.acquire(1, { wait }) : lock.acquire({ wait })
}

async function pair(lock) {
  const hold = await lock.acquire()
  await hold.release()
}

async function warm(lock) {
  const { isOpen } = windowOf(Number(args.warmup))
  while (isOpen()) await pair(lock)
}

// Runs a caller for each lock: all warm up in the way that is measured, which begins when they are done.
async function together(locks, work) {
  const each = window => Promise.all(locks.map((lock, number) => work(window, lock, number)))
  await each(windowOf(Number(args.warmup)))
  const window = await open()
  return [window, await each(window)]
}

const workloads = {
  async W1() {
    const lock = await lockOf(1)
    await warm(lock)
    const window = await open()
    const times = []
    while (window.isOpen()) {
      const begun = performance.now()
      await pair(lock)
      times.push((performance.now() - begun) * 1000)
    }
    window.report({
      pairs: times.length, p50_us: share(times, 0.5), p99_us: share(times, 0.99), max_us: share(times, 1),
      quantiles_us: shares.map(part => share(times, part)),
    })
  },

  async W2() {
    const [window, pairs] = await together(await Promise.all(tasks.map(lockOf)), async ({ isOpen }, lock) => {
      let done = 0
      for (; isOpen(); done++) await pair(lock)
      return done
    })
    window.report({ pairs: sum(pairs), threads: status('Threads') })
  },

  async W3() {
    await warm(await lockOf(`warm${args.id}`))
    const lock = await lockOf('w3')
    const window = await open()
    const lines = []
    while (window.isOpen()) {
      const hold = await acquireWithin(lock, window.left()).catch(() => null)
      if (!hold) break
      const acquired = process.hrtime.bigint()
      await sleep(Number(args['cs-us']) / 1000)
      const called = process.hrtime.bigint()
      await hold.release()
      lines.push(`${acquired} ${called} ${process.hrtime.bigint()}\n`)
    }
    if (args['ts-file']) writeFileSync(args['ts-file'], lines.join(''))
    window.report({ acq: lines.length })
  },

  async W4() {
    let last = -1
    const locks = await Promise.all(tasks.map(() => lockOf('one')))
    const [window, results] = await together(locks, async ({ isOpen, left }, lock, number) => {
      const waits = []
      let acquired = 0
      let handed = 0
      while (isOpen()) {
        const begun = performance.now()
        const hold = await acquireWithin(lock, left()).catch(() => null)
        waits.push(performance.now() - begun)
        if (!hold) break
        acquired++
        handed += last === number ? 0 : 1
        last = number
        await hold.release()
      }
      return { acquired, handed, waits }
    })
    const used = window.used()
    const acquired = results.map(caller => caller.acquired)
    const waits = results.flatMap(caller => caller.waits)
    window.report({
      acq: sum(acquired), handoffs: sum(results.map(caller => caller.handed)), jain: jain(acquired),
      max_wait_ms: share(waits, 1), p99_wait_ms: share(waits, 0.99),
    }, used)
  },

  async W5() {
    const before = status('VmRSS')
    const begun = performance.now()
    const holds = []
    for (let number = 0; number < Number(args.locks); number++) holds.push(await (await lockOf(number)).acquire())
    const taken = (performance.now() - begun) / 1000
    const window = await open()
    await sleep(Number(args.seconds) * 1000)
    const used = window.used()
    window.report({
      locks: holds.filter(hold => hold.isHeld).length, rss_before_kb: before, rss_after_kb: status('VmRSS'),
      threads: status('Threads'), acquire_s: taken,
    }, used)
  },
}

if (args.kind === 'plain-semaphore' && args.workload === 'W5') {
  console.log(JSON.stringify({ na: 'permits without a lease are not renewed' }))
} else {
  await workloads[args.workload]()
}
// The runner cleans up; ten thousand releases would only be in the way.
process.exit(0)
