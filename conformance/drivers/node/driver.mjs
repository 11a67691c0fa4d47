// The program of Node.js: driver.mjs [act JSON]; see conformance/drivers/README.md.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { Client, LockError, LockLostError } from 'redlatch'
import { ask } from './counters.mjs'
import { turn } from './turn.mjs'
import { usage } from './usage.mjs'

const require = createRequire(import.meta.url)
const tables = JSON.parse(require('../../../bindings-node/lib/native.js').tables())
const clients = new Map()
const holds = new Map() // of an actor thread on a lock, newest last
const keys = new Map() // an owner per actor thread
const running = new Map()

const seat = ({ client, as, lock, side }) => JSON.stringify([client, as, lock, side])
const held = request => holds.get(seat(request)) ?? []

function key({ client, as }) {
  const name = JSON.stringify([client, as])
  if (!keys.has(name)) keys.set(name, keys.size + 1)
  return keys.get(name)
}

// Every driver of redlatch says this of itself: the tables must be the same in all languages.
function hello() {
  const numbers = rows => Object.fromEntries(rows.map(row => [row.name, row.number]))
  return {
    language: 'node',
    version: require('redlatch/package.json').version,
    errors: numbers(tables.errors),
    reasons: numbers(tables.reasons),
    options: tables.options.map(option => option.name),
  }
}

// The lock itself, or one side of the read-write lock of that name, or the semaphore, or the multi lock.
function lockOf(client, { lock, side, limit, fair, multi, kind }) {
  if (multi) return client.multiLock(lock.split(','))
  if (limit !== undefined) return client.semaphore(lock, { limit, fair })
  return side ? client.rwLock(lock)[side] : client.lock(lock, { kind })
}

async function perform(request, signal) {
  if (request.op === 'hello') return hello()
  if (request.op === 'open') {
    const { watchdog_ms: watchdogLease, recheck_ms: recheck, cluster_pubsub: clusterPubsub } = request
    const { restart_delay_ms: restartDelay, preference_ms: writerPreference, fencing, kind, reentrant } = request
    const options = { watchdogLease, recheck, restartDelay, clusterPubsub, writerPreference, fencing, kind, reentrant }
    clients.set(request.client, await Client.connect(request.url, options))
    return {}
  }
  const client = clients.get(request.client)
  if (request.op === 'usage') return { ...(await usage()), ...client?.stats() }
  if (request.op === 'forget') {
    clients.delete(request.client)
    return {}
  }
  if (request.op === 'close') return { value: await client.close() }
  if (request.counter) return ask(client, request, signal)
  const lock = lockOf(client, request)
  if (request.op === 'turn') return turn(lock, request)
  const hold = held(request).at(-1)
  switch (request.op) {
    case 'acquire': {
      const { wait_ms: wait, lease_ms: lease, extend_ms: longer, token, permits } = request
      const own = request.limit === undefined ? { token, key: key(request) } : { permits }
      const won = await lock.acquire({ wait, lease, signal, ...own })
      holds.set(seat(request), [...held(request), won])
      if (longer !== undefined) await won.extend(longer)
      return { token: won.fencingToken === undefined ? null : Number(won.fencingToken) }
    }
    case 'adopt':
      holds.set(seat(request), [...held(request), await lock.adopt(request.token)])
      return {}
    case 'release':
      if (!hold) return { status: 'not_owner' }
      held(request).pop()
      if (await hold.release()) return {}
      return { status: 'lost', reason: hold.signal.reason?.reason }
    case 'extend':
      await hold.extend(request.lease_ms)
      return {}
    case 'force':
      return { value: await lock.forceRelease() }
    case 'held':
      return { value: hold?.isHeld ?? false }
    case 'count':
      return { value: hold?.holdCount ?? 0 }
    case 'locked':
      return { value: await lock.isLocked() }
    case 'holder': {
      const holder = await lock.holder()
      return { value: holder && { owner: holder.owner, count: holder.count } }
    }
    case 'permits': {
      const { available: free, limit } = await lock.permits()
      return { free, limit }
    }
    case 'set':
      await lock.setPermits(request.permits)
      return {}
    case 'holders':
      return { value: (await lock.holders()).reduce((sum, { count }) => sum + count, 0) }
    case 'lost':
      return lost(hold, request.within_ms)
    default:
      return { status: 'unsupported' }
  }
}

function lost(hold, within) {
  return new Promise(resolve => {
    const tell = () => resolve({ reason: hold.signal.reason.reason })
    if (hold.signal.aborted) return tell()
    hold.signal.addEventListener('abort', tell, { once: true })
    setTimeout(() => resolve({ status: 'timeout' }), within)
  })
}

async function serve(request) {
  const cancel = new AbortController()
  let reply
  if (request.op === 'cancel') {
    const target = running.get(request.target)
    target?.abort()
    reply = { status: target ? 'ok' : 'not_found' }
  } else {
    running.set(request.id, cancel)
    try {
      reply = await perform(request, cancel.signal)
    } catch (error) {
      if (error instanceof LockError) {
        const reason = error instanceof LockLostError ? { reason: error.reason } : {}
        reply = { status: error.kind, text: error.message, ...reason }
      } else if (cancel.signal.aborted) {
        reply = { status: 'cancelled' }
      } else {
        reply = { status: 'error', text: String(error) }
      }
    }
    running.delete(request.id)
  }
  console.log(JSON.stringify({ status: 'ok', ...reply, id: request.id }))
}

if (process.argv[2] === 'act') await import('./acts.mjs')
else createInterface({ input: process.stdin }).on('line', line => serve(JSON.parse(line)))
