// A price list that one refreshes and many read: nobody sees half a list; see docs/recipes.md.
//
// price_list.mjs SHOP, with the server in REDLATCH_URL and the version that is wanted, a line each, on standard input
import { appendFile, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'redlatch'

const prices = join(process.argv[2], 'prices')

// The version of the list. Its two lines tell the same while nobody writes; an empty list has version 0.
async function version() {
  const [first, second] = (await readFile(prices, 'utf8')).split('\n').filter(Boolean)
  if (first !== second) throw new Error('half a list')
  return Number(first ?? 0)
}

// Writes the list in two steps. Correct only while nobody else reads or writes.
async function refresh(wanted) {
  await writeFile(prices, `${wanted}\n`)
  await sleep(20) // the query for the second half
  await appendFile(prices, `${wanted}\n`)
}

const client = new Client()
const { read, write } = client.rwLock('prices')

async function lookUp(wanted) {
  // Beside other readers.
  if (await read.using({ wait: 10_000 }, async () => (await version()) >= wanted)) return 'read'
  // Alone.
  return write.using({ wait: 10_000 }, async () => {
    if ((await version()) >= wanted) return 'read' // somebody else was faster
    await refresh(wanted)
    return 'refreshed'
  })
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(line, await lookUp(Number(line)).catch((error) => error.message))
}
await client.close()
