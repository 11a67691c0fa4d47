// The flash sale; see examples/README.md.
//
// flash_sale.mjs SHOP WORKERS [--without-lock], with the server in REDLATCH_URL
import { appendFile, open } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'redlatch'

const [shop, workers, flag] = process.argv.slice(2)

// Sells one item; false when the stock is empty. Correct only while nobody else does the same.
async function sell() {
  const stock = await open(join(shop, 'stock'), 'r+')
  try {
    const left = Number(await stock.readFile('utf8'))
    if (left === 0) return false
    await sleep(1) // the payment
    await stock.write(String(left - 1).padStart(4, '0'), 0)
  } finally {
    await stock.close()
  }
  await appendFile(join(shop, 'orders'), 'node\n')
  return true
}

async function work(lock) {
  while (await (flag ? sell() : lock.using(sell)));
}

const client = await Client.connect()
// Workers of all programs have their turn in the order in which they come.
const lock = client.lock('flash-sale', { kind: 'fair' })

console.log('ready') // the sale begins for everybody at once
const input = createInterface({ input: process.stdin })
await input.question('')
input.close()

await Promise.all(Array.from({ length: Number(workers) }, () => work(lock)))
await client.close()
