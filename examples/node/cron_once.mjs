// A cron job that all hosts start and one of them runs; see docs/recipes.md.
//
// cron_once.mjs FOLDER PERIOD, with the server in REDLATCH_URL. PERIOD is how often cron starts it, in seconds.
import { appendFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'redlatch'

const [folder, period] = process.argv.slice(2)

async function report() {
  await appendFile(join(folder, 'reports'), `node ${new Date().toISOString()}\n`)
}

const client = new Client()
// It lingers: the end of the client leaves it to its lease, which ends before the next period.
const lock = client.lock('cron:report', { kind: 'simple', lease: 0.9 * 1000 * Number(period), linger: true })
const hold = await lock.tryAcquire()
if (hold) {
  try {
    await report()
  } catch (error) {
    await hold.release() // it did not run: the next host may
    throw error
  }
}
// Not released: a host whose clock is late would run the job again.
await client.close()
console.log(hold ? 'ran' : 'skipped')
