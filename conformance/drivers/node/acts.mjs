// The acts of the fault matrix; see conformance/drivers/README.md. Each is a process of its own.
import { readSync } from 'node:fs'
import { setImmediate as tick, setTimeout as sleep } from 'node:timers/promises'
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads'
import { Client } from 'redlatch'
import { usage } from './usage.mjs'

// How long anything may take that has no limit of its own: only a hang reaches it.
const PATIENCE = 60_000
const plan = isMainThread ? JSON.parse(process.argv[3]) : workerData
const { act: name, url, lock: lockName, lease_ms: lease, size } = plan
const busyName = `${lockName}:busy`

const say = word => console.log(word)
const connect = options => Client.connect(url, { watchdogLease: lease, ...options })

class Failed extends Error {}

function ensure(holds, text) {
  if (!holds) throw new Failed(text)
}

async function until(text, holds) {
  const end = performance.now() + PATIENCE
  while (!(await holds())) {
    ensure(performance.now() < end, text)
    await sleep(2)
  }
}

// Says `ready`, and goes on when the matrix says so.
function ready() {
  say('ready')
  readSync(0, Buffer.alloc(1))
}

function standStill(ms) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}

function spin(ms) {
  const end = performance.now() + ms
  while (performance.now() < end);
}

async function renewed(client, times) {
  const before = client.stats().renewed
  await until('nothing is renewed', () => client.stats().renewed >= before + times)
}

async function atRest(client) {
  await until('something is still held or waited for', () => client.stats().holds === 0 && client.stats().waiting === 0)
}

// The same client goes on as if nothing had happened.
async function works(client) {
  const hold = await client.lock(lockName).acquire({ wait: PATIENCE })
  ensure(hold.holdCount === 1, 'the count is another one')
  await hold.release()
  await atRest(client)
  say('done')
  await client.close()
}

// The matrix compares it.
async function sayResources(when) {
  const { memory, threads, files } = await usage()
  say(`${when} memory=${memory} threads=${threads} descriptors=${files}`)
}

// ---- parts of the process end ----

async function leave() {
  const client = await connect()
  globalThis.kept = await client.lock(lockName).acquire()
  const waiting = [client, client].map(one => one.lock(busyName).acquire())
  await until('nobody waits', () => client.stats().waiting === 2)
  ready()
  if (name === 'exit-exit') process.exit(3)
  if (name === 'exit-exception') setImmediate(() => { throw new Error(`on purpose, with ${waiting.length} waiters`) })
}

async function holdInWorker() {
  const client = await connect()
  globalThis.kept = await client.lock(lockName).acquire()
  client.lock(busyName).acquire()
  await until('nobody waits', () => client.stats().waiting === 1)
  parentPort.postMessage('holds')
  setInterval(() => {}, 1000)
}

// A worker is ended while it holds and waits.
async function runtimeEnds() {
  const client = await connect()
  const worker = new Worker(new URL(import.meta.url), { workerData: plan })
  await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject))
  ready()
  await worker.terminate()
  say('ended')
  await works(client)
}

async function collected() {
  const client = await connect()
  await (async () => { await client.lock(lockName).acquire() })()
  ready()
  const abandoned = new Promise(resolve => client.on('event', event => event.kind === 'abandoned' && resolve(true)))
  for (let done = false; !done; ) {
    gc()
    done = await Promise.race([abandoned, sleep(5)])
  }
  await works(client)
}

// The event loop does nothing for three leases.
async function blocked() {
  const client = await connect()
  const hold = await client.lock(lockName).acquire()
  ready()
  standStill(3 * lease)
  hold.check()
  ready()
  await hold.release()
  ensure(client.stats().lost === 0, 'something was lost')
  await works(client)
}

// ---- cancelling ----

// Aborts one acquisition when `moment` says so; gives the hold if it was granted.
async function abortAt(lock, moment) {
  const controller = new AbortController()
  const reason = new Error('on purpose')
  const asked = lock.acquire({ signal: controller.signal })
  const answer = asked.then(hold => ({ hold }), error => ({ error }))
  await moment()
  controller.abort(reason)
  const { hold, error } = await answer
  ensure(hold ? !error : error === reason, `an answer that is neither: ${error}`)
  return hold
}

// Aborted after so many turns of the microtask queue and of the event loop.
async function steps() {
  const [client, other] = [await connect(), await connect()]
  const [lock, others] = [client.lock(lockName), other.lock(lockName)]
  ready()
  let granted = 0
  let turns = 0
  for (const contended of [false, true]) {
    for (const turn of [0, 1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 512]) {
      for (const next of [() => Promise.resolve(), () => tick()]) {
        const held = contended ? await others.acquire({ wait: PATIENCE }) : undefined
        const hold = await abortAt(lock, async () => {
          const freed = held?.release()
          for (let at = 0; at < turn; at += 1) await next()
          return { freed }
        })
        turns += 1
        granted += hold ? 1 : 0
        await hold?.release()
        await until('the lock stays', async () => !(await lock.isLocked()))
      }
    }
  }
  say(`granted ${granted} aborted ${turns - granted}`)
  await works(client)
}

// Aborted some time after the call began, from nothing to longer than it takes.
async function instants() {
  const [client, other] = [await connect(), await connect()]
  const [lock, others] = [client.lock(lockName), other.lock(lockName)]
  ready()
  let granted = 0
  for (let turn = 0; turn < size; turn += 1) {
    const held = turn % 2 ? await others.acquire({ wait: PATIENCE }) : undefined
    const hold = await abortAt(lock, async () => {
      const end = performance.now() + (lease / 400) * (turn / size)
      const freed = held?.release()
      while (performance.now() < end) await tick()
      return { freed }
    })
    granted += hold ? 1 : 0
    await hold?.release()
  }
  say(`granted ${granted} aborted ${size - granted}`)
  await works(client)
}

// Aborted when the lock is won and the event loop has not heard of it yet, which takes an answer from afar.
async function granted() {
  const client = await connect({ direct: false })
  const lock = client.lock(lockName)
  ready()
  for (let turn = 0; turn < size; turn += 1) {
    const before = client.stats().acquired
    const hold = await abortAt(lock, () => {
      const end = performance.now() + PATIENCE
      while (client.stats().acquired === before && performance.now() < end) standStill(1)
    })
    ensure(!hold, 'it was granted and aborted')
    await atRest(client)
    await until('the lock stays', async () => !(await lock.isLocked()))
  }
  await works(client)
}

// One level is given back while the next one is being acquired.
async function race() {
  const client = await connect()
  const lock = client.lock(lockName)
  ready()
  for (let turn = 0; turn < size; turn += 1) {
    const first = await lock.acquire({ wait: PATIENCE })
    const second = await first.reenter()
    const work = [() => second.release(), () => first.reenter()]
    if (turn % 2) work.reverse()
    const begun = work.map(one => one())
    const done = await Promise.all(begun)
    const third = done.find(one => typeof one === 'object')
    const there = (await lock.holder())?.count
    ensure(first.holdCount === 2 && there === 2, `client and server count ${first.holdCount} and ${there}, and not 2`)
    await third.release()
    await first.release()
    ensure(!(await lock.isLocked()), 'the lock stays')
  }
  await works(client)
}

// ---- scale ----

// All wait for one name and are served one after the other; then all wait again and are aborted.
async function waiters() {
  const [client, other] = [await connect(), await connect()]
  ready()
  for (let turn = 0; turn < 3; turn += 1) {
    for (const abort of [false, true]) {
      const held = await other.lock(lockName).acquire()
      const controllers = Array.from({ length: size }, () => new AbortController())
      const served = controllers.map(({ signal }) => client.lock(lockName).acquire({ signal }).then(hold => hold.release()))
      const answers = Promise.allSettled(served)
      await until('not all wait', () => client.stats().waiting === size)
      if (abort) for (const controller of controllers) controller.abort()
      else await held.release()
      const wanted = abort ? 'rejected' : 'fulfilled'
      const ended = (await answers).filter(({ status }) => status === wanted).length
      ensure(ended === size, `${ended} of ${size} were ${wanted}`)
      if (abort) await held.release()
    }
    await atRest(client)
    await sayResources(turn ? 'after' : 'before')
  }
  await works(client)
}

async function inParts(work) {
  const done = []
  for (let first = 0; first < size; first += 500) {
    const part = Array.from({ length: Math.min(500, size - first) }, (_, at) => work(first + at))
    done.push(...(await Promise.all(part)))
  }
  return done
}

async function holds() {
  const client = await connect()
  ready()
  const held = await inParts(number => client.lock(`${lockName}:${number}`).acquire())
  say('held')
  for (let round = 0; round < 3; round += 1) await renewed(client, size)
  const kept = held.filter(hold => hold.isHeld).length
  ensure(kept === size && client.stats().lost === 0, `${kept} of ${size} are held`)
  ready()
  await inParts(number => held[number].release())
  await works(client)
}

// Each name is used once. Memory that grows while the second half is used grows with the names.
async function names() {
  const client = await connect()
  ready()
  for (let number = 0; number < size; number += 1) {
    if (number === size / 2) {
      await atRest(client)
      await sayResources('before')
    }
    await client.lock(`${lockName}:${number}`).using(() => {})
  }
  await atRest(client)
  await sayResources('after')
  await works(client)
}

const ACTS = {
  'exit-return': leave,
  'exit-exit': leave,
  'exit-exception': leave,
  'runtime-ends': runtimeEnds,
  collected,
  blocked,
  'cancel-steps': steps,
  'cancel-instants': instants,
  'cancel-granted': granted,
  race,
  waiters,
  holds,
  names,
}

try {
  await (isMainThread ? ACTS[name]() : holdInWorker())
} catch (error) {
  say(`failed ${error.stack.replaceAll('\n', ' /')}`)
  process.exit(1)
}
