// Compiled and run by types.test.ts's sibling types.test.js: every part of the declared interface, as a user writes it.
import { strict as assert } from 'node:assert'
import { Client, type Hold, type Holder, LockError, LockLostError, LockTimeoutError } from 'redlatch'
import type { HoldPart, Lock as Lock_, LostReason, MultiLock, Permits, PlainPermit } from 'redlatch'
import { type Lock, type LockInfo, locks, locksOf } from 'redlatch/web-locks'

class Shop extends Client {}

async function main(): Promise<void> {
  await using client: Client = await Client.connect({ watchdogLease: '30s', fencing: true, clientName: 'types' })
  client.on('lost', (error) => console.log(error.reason satisfies LostReason))
  client.on('event', ({ kind, level, lockName, text }) => void [kind, level, lockName?.length, text])
  const lock = client.lock('types', { lease: null, context: true })
  let kept: Hold
  {
    await using hold = await lock.acquire({ wait: 5000, signal: AbortSignal.timeout(10_000) })
    kept = hold
    const token: bigint | undefined = hold.fencingToken
    assert.equal(typeof token, 'bigint')
    hold.check()
    await using inner = await hold.reenter({ wait: '5s' })
    assert.equal(inner.holdCount, 2)
    await hold.extend(60_000)
    assert.equal(await lock.tryAcquire(), null)
    assert.ok(hold.remaining > 0 && !hold.signal.aborted)
  }
  assert.equal(kept.isHeld, false)
  const answer: number = await lock.using({ key: 1n, context: false }, async (hold) => hold.holdCount)
  const name: string = await lock.using((hold) => hold.name)
  assert.deepEqual([answer, name], [1, lock.name])
  assert.equal((await lock.holder())?.owner, undefined)
  const queue: Holder[] = await client.lock('types-fair', { kind: 'fair' }).waiters()
  assert.deepEqual(queue, [])

  {
    await using lost = await lock.acquire()
    assert.equal(await lock.forceRelease(), true)
    assert.equal(await lost.release(), false)
  }
  try {
    await using hold = await lock.acquire()
    await lock.acquire({ wait: 0, lease: 1000 })
    assert.fail(`${hold.name} was acquired twice`)
  } catch (error) {
    if (!(error instanceof LockTimeoutError)) throw error
    assert.ok(error instanceof LockError && !(error instanceof LockLostError))
    assert.deepEqual([error.code, error.kind, error.retryable], ['ERR_REDLATCH_TIMEOUT', 'timeout', true])
  }
  assert.equal(await lock.isLocked(), false)

  const gpus = client.semaphore('types-gpu', { limit: 2, maxHold: '1h' })
  {
    await using both: Hold = await gpus.acquire({ permits: 2, wait: '5s', lease: 10_000, signal: AbortSignal.timeout(10_000) })
    const { available, limit }: Permits = await gpus.permits()
    assert.deepEqual([available, limit, both.isHeld], [0, 2, true])
    assert.equal(await client.semaphore('types-gpu', 2).tryAcquire({ permits: 1 }), null)
  }
  const held: boolean = await gpus.using({ permits: 2 }, async (hold) => hold.isHeld)
  assert.deepEqual([held, (await gpus.setPermits(3)).available, (await gpus.holders()).length], [true, 3, 0])

  const all: MultiLock = client.multiLock(['types', client.rwLock('types-prices').read, gpus], { lease: '10s' })
  const tokens: (bigint | undefined)[] = await all.using({ wait: '5s' }, (hold) => hold.parts.map((part: HoldPart) => part.fencingToken))
  assert.deepEqual([tokens.length, client.multiLock([all, 'types-more'] as const).parts.length], [3, 4])
  const asLock: Lock_ = all
  assert.equal(asLock.name, all.name)

  const seats = client.plainSemaphore('types-seats')
  assert.equal(await seats.trySetPermits(3), true)
  {
    await using two: PlainPermit = await seats.acquire(2, { wait: '5s', signal: AbortSignal.timeout(10_000) })
    const none: PlainPermit | null = await seats.tryAcquire(2)
    assert.deepEqual([two.name, two.permits, none], [seats.name, 2, null])
  }
  const used: number = await seats.using((permit: PlainPermit) => permit.permits)
  const usedTwo: number = await seats.using(2, async (permit) => permit.permits)
  const usedThree: string = await seats.using(3, { wait: 0 }, ({ name }) => name)
  assert.deepEqual([used, usedTwo, usedThree], [1, 2, seats.name])
  await seats.release()
  assert.deepEqual([await seats.addPermits(-1), await seats.available(), await seats.drain()], [3, 3, 3])
  const ready = client.latch('types-ready')
  assert.deepEqual([await ready.trySetCount(2), await ready.countDown(), await ready.count()], [true, 1, 1])
  assert.equal(await ready.countDown(1), 0)
  await ready.wait({ wait: 0, signal: AbortSignal.timeout(10_000) })

  const mine: string = await locks.request('types', (held: Lock) => held.name)
  const none: number | null = await locks.request('types', { ifAvailable: true }, async (held) => held && 1)
  const shared = await locksOf(client).request('types', { mode: 'shared', signal: AbortSignal.timeout(10_000) }, async (held) => {
    held.signal.throwIfAborted()
    const { held: all, pending }: { held: LockInfo[]; pending: LockInfo[] } = await locksOf(client).query({ names: ['types'] })
    return [held.mode, all.length, pending.length] as const
  })
  const stolen = await locks.request('types', { steal: true }, ({ mode }) => mode)
  assert.deepEqual([mine, none, shared, stolen], ['types', 1, ['shared', 1, 0], 'exclusive'])
  const shop: Shop = await Shop.connect()
  await shop.close()
  const unreleased: string[] = await client.close(1000)
  assert.equal(unreleased.length + client.stats().eventsDropped, 0)
  console.log('done')
}

void main()
