// The conformance driver of Node's other locks: redlock (4 and 5) and the mutex of redis-semaphore.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { Redis } from 'ioredis'
import { Mutex, TimeoutError } from 'redis-semaphore'

const require = createRequire(import.meta.url)
const Redlock = require('redlock')
const Redlock5 = require('redlock-5').default
const RETRY = 50
// A lock without a given lease that is not renewed must outlast the row.
const LONG = 30_000
const clients = new Map()
const holds = new Map()

class Refused extends Error {}

// Each side: how it acquires, and what its hold can do.
const sides = {
  'redlock': retrying(Redlock, name => name),
  'redlock-5': retrying(Redlock5, name => [name]),
  'redis-semaphore': semaphore,
}

function retrying(Class, resource) {
  const create = (servers, retryCount) => {
    const redlock = new Class(servers, { retryCount, retryDelay: RETRY, retryJitter: RETRY / 2 })
    // redlock tells the error of each server here, and its own in the promise.
    return redlock.on('error', () => {})
  }
  return async (servers, name, { wait_ms: wait, lease_ms: lease = LONG }) => {
    // It would also try again and again to release or extend what it has lost: that once only.
    const patient = create(servers, wait === undefined ? -1 : Math.floor(wait / RETRY))
    const once = create(servers, 0)
    let lock
    try {
      lock = await patient.acquire(resource(name), lease)
    } catch (error) {
      throw /attempts|quorum/.test(error.message) ? new Refused('timeout', { cause: error }) : error
    }
    const owning = promise => promise.catch(error => { throw new Refused('not_owner', { cause: error }) })
    return {
      value: lock.value,
      release: () => owning(once.release(lock)),
      extend: async lease => { lock = await owning(once.extend(lock, lease)) },
      crash() {},
    }
  }
}

async function semaphore([redis], name, { wait_ms: wait, lease_ms: lease }, watchdog) {
  let lost
  const told = new Promise(resolve => { lost = resolve })
  const lockTimeout = lease ?? watchdog
  const mutex = new Mutex(redis, name, {
    lockTimeout,
    refreshInterval: lease === undefined ? Math.round(lockTimeout / 3) : 0,
    acquireTimeout: wait || Infinity,
    acquireAttemptsLimit: wait === 0 ? 1 : Infinity,
    retryInterval: RETRY,
    onLockLost: lost,
  })
  try {
    await mutex.acquire()
  } catch (error) {
    throw error instanceof TimeoutError ? new Refused('timeout', { cause: error }) : error
  }
  return { value: mutex.identifier, release: () => mutex.release(), crash: () => mutex.stopRefresh(), lost: told }
}

function connect(server) {
  const url = server.startsWith('redis://') ? server : `redis://${server}`
  // It says the same in each command.
  return new Redis(url, { maxRetriesPerRequest: null }).on('error', () => {})
}

async function perform(request) {
  const { op, client: name } = request
  if (op === 'hello') return { version: require(`../../node_modules/${request.side}/package.json`).version.replace(/^v/, '') }
  if (op === 'open') {
    // A quorum has several, as `redis+quorum://a,b,c`.
    const servers = request.url.replace('redis+quorum://', 'redis://').split(',').map(connect)
    clients.set(name, { servers, acquire: sides[request.side], watchdog: request.watchdog_ms })
    return {}
  }
  const { servers, acquire, watchdog } = clients.get(name)
  if (op === 'close') return servers.forEach(redis => redis.disconnect())
  const seat = JSON.stringify([name, request.as, request.lock])
  if (op === 'acquire') {
    holds.set(seat, await acquire(servers, request.lock, request, watchdog))
    return { token: null }
  }
  const hold = holds.get(seat)
  if (op === 'held') {
    return { value: hold !== undefined && (await servers[0].get(request.prefix + request.lock)) === hold.value }
  }
  if (op === 'lost' && hold?.lost) return hold.lost.then(() => ({}))
  if (!['release', 'extend', 'crash'].includes(op)) return { status: 'unsupported' }
  if (!hold) return { status: 'not_owner' }
  if (!hold[op]) return { status: 'unsupported' }
  await hold[op](request.lease_ms)
  return {}
}

async function serve(request) {
  let reply
  try {
    reply = await perform(request)
  } catch (error) {
    const text = String(error.cause ?? error)
    if (error instanceof Refused) reply = { status: error.message, text }
    else reply = { status: text.includes('WRONGTYPE') ? 'foreign_kind' : 'error', text }
  }
  console.log(JSON.stringify({ status: 'ok', ...reply, id: request.id }))
}

createInterface({ input: process.stdin })
  .on('line', line => serve(JSON.parse(line)))
  .on('close', () => process.exit())
