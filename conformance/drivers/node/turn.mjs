// A turn: acquires, holds for a while and releases; see conformance/drivers/README.md.
import { setTimeout as sleep } from 'node:timers/promises'
import { LockError } from 'redlatch'

const LOOK = 50 // how often one that holds looks whether it does
const now = () => Number(process.hrtime.bigint())
// Their numbers are above those of driver.mjs.
let owners = 2 ** 32

// The value of a promise, and `ok` or the kind of its error.
async function outcome(promise) {
  try {
    return [await promise, 'ok']
  } catch (error) {
    if (error instanceof LockError) return [undefined, error.kind]
    throw error
  }
}

export async function turn(lock, request) {
  const { wait_ms: wait, lease_ms: lease, permits, multi, reenter_ms: again, extend_ms: longer } = request
  const own = permits === undefined ? { key: ++owners } : { permits }
  const called = now()
  const [hold, status] = await outcome(lock.acquire({ wait, lease, ...own }))
  const times = { status, called, answered: now() }
  if (!hold) return times
  hold.signal.addEventListener('abort', () => {
    console.log(JSON.stringify({ told: hold.signal.reason.reason, as: request.as, called, at: now() }))
  })
  const levels = []
  if (again !== undefined) {
    const [level] = await outcome(multi ? lock.acquire({ wait: again, ...own }) : hold.reenter({ wait: again }))
    if (level) levels.push(level)
  }
  // A refusal is the loss that the release will tell.
  if (longer !== undefined) await outcome(hold.extend(longer))
  const count = hold.holdCount
  let sure = 0
  let kept = false
  for (let rest = request.rest_ms; ; rest -= LOOK) {
    const at = now()
    kept = hold.isHeld
    if (kept) sure = at
    if (rest <= 0) break
    await sleep(Math.min(rest, LOOK))
  }
  for (const level of levels) await outcome(level.release())
  const freed = now()
  const until = hold.remaining > 0 ? freed + Math.floor(hold.remaining) * 1e6 : 0
  const [confirmed, ended] = await outcome(hold.release())
  const release = confirmed === false ? 'lost' : ended
  const token = hold.fencingToken === undefined ? null : Number(hold.fencingToken)
  return { ...times, token, levels: levels.length + 1, count, sure, kept, until, freed, done: now(), release }
}
