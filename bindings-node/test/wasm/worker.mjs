// The Worker of workerd.test.js: each path is a function of it, with the words of the query.
import { DurableObject } from 'cloudflare:workers'
import * as all from 'redlatch'

const { Client } = all

// Keeps the wake-ups of a wait to those that the server pushes.
const PUSHED = { recheck: 60_000 }

const told = (error) => {
  const { name, message, kind, reason, cause } = error
  return { name, message, kind, reason, code: cause?.code, isLockError: error instanceof all.LockError }
}

const outside = attempt(() => new Client('redis://127.0.0.1:1'))
let shared

function attempt(call) {
  try {
    return call()
  } catch (error) {
    return { error: told(error) }
  }
}

const calls = {
  exports: () => Object.keys(all).sort(),
  outside: () => outside,

  async acquire({ name }) {
    await using client = await Client.connect(PUSHED)
    await using hold = await client.lock(name).acquire({ wait: 120_000 })
    return { isHeld: hold.isHeld, remaining: hold.remaining }
  },

  // Holds the lock until the latch is at 0.
  async hold({ name, latch }) {
    await using client = await Client.connect(PUSHED)
    await using _ = await client.lock(name).acquire()
    await client.latch(latch).wait()
  },

  async lose({ name }) {
    await using client = await Client.connect()
    const event = new Promise((resolve) => client.on('lost', resolve))
    await using hold = await client.lock(name).acquire()
    const signal = new Promise((resolve) => hold.signal.addEventListener('abort', () => resolve(hold.signal.reason)))
    const losses = await Promise.all([event, signal])
    return { losses: losses.map(told), isHeld: hold.isHeld, released: await hold.release() }
  },

  async connect({ url, ...options }) {
    await using client = await Client.connect(url, { outage: 100, ...options })
    return await client.lock('connected').using((hold) => hold.isHeld)
  },

  // Leaves a client and a hold behind.
  async leave({ name }) {
    const client = await Client.connect()
    shared = { client, hold: await client.lock(name).acquire({ lease: 60_000 }) }
  },

  async useLeft({ name }) {
    const { client, hold } = shared
    const refusals = []
    for (const call of [() => client.lock(name).acquire(), () => hold.release(), () => hold.extend(1000), () => client.close()]) {
      refusals.push(await call().catch(told))
    }
    return { refusals, isHeld: hold.isHeld }
  },

  // Shows its hold and its permit to other requests until the latch is at 0, and releases both.
  async show({ name, seats, latch }) {
    await using client = await Client.connect(PUSHED)
    const semaphore = client.plainSemaphore(seats)
    await semaphore.trySetPermits(1)
    shared = { hold: await client.lock(name).acquire(), permit: await semaphore.acquire() }
    await client.latch(latch).wait()
    await shared.permit.release()
    return { released: await shared.hold.release(), available: await semaphore.available() }
  },

  async releaseShown() {
    const { hold, permit } = shared
    return [await hold.release().catch(told), await permit.release().catch(told)]
  },
}

// All events of an object share its sockets and timers.
export class Keeper extends DurableObject {
  async next(name) {
    this.client ??= await Client.connect()
    this.hold ??= await this.client.lock(name).acquire()
    this.signal ??= this.hold.signal
    return (await this.client.lock(name).holders()).length
  }

  async lost() {
    if (!this.signal.aborted) await new Promise((resolve) => this.signal.addEventListener('abort', resolve))
    return this.signal.reason.reason
  }

  // Forgets the hold.
  async forget(name) {
    this.client ??= await Client.connect()
    await this.client.lock(name, { watchdogLease: 1000 }).acquire()
  }

  async end() {
    await this.hold.release()
    await this.client.close()
  }
}

calls.keep = ({ name }, { KEEPER }) => KEEPER.getByName('one').next(name)
calls.lost = (_, { KEEPER }) => KEEPER.getByName('one').lost()
calls.forget = ({ name }, { KEEPER }) => KEEPER.getByName('forgetful').forget(name)
calls.collect = () => globalThis.gc()
calls.end = (_, { KEEPER }) => KEEPER.getByName('one').end()

export default {
  async fetch(request, env) {
    const { pathname, searchParams } = new URL(request.url)
    try {
      return Response.json({ value: await calls[pathname.slice(1)](Object.fromEntries(searchParams), env) })
    } catch (error) {
      return Response.json({ error: told(error) })
    }
  },
}
