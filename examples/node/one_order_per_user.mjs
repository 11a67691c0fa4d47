// One order per user: who clicks twice orders once, whichever servers get the clicks; see docs/recipes.md.
//
// one_order_per_user.mjs SHOP, with the server in REDLATCH_URL and one user a line on standard input
import { appendFile, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'redlatch'

const orders = join(process.argv[2], 'orders')

// Orders unless the user has ordered. Correct only while nobody else does the same for this user.
async function order(user) {
  if ((await readFile(orders, 'utf8')).split('\n').includes(user)) return false
  await sleep(20) // the payment
  await appendFile(orders, `${user}\n`)
  return true
}

const client = new Client()
for await (const user of createInterface({ input: process.stdin })) {
  const lock = client.lock(`order:${user}`) // one name per user: others need not wait
  const ordered = await lock.using({ wait: 10_000 }, () => order(user))
  console.log(user, ordered ? 'ordered' : 'refused')
}
await client.close()
