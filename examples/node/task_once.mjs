// Each task once: a queue delivers a task to several workers, or again; see docs/recipes.md.
//
// task_once.mjs FOLDER, with the server in REDLATCH_URL and one task a line on standard input
import { appendFile, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'redlatch'

const done = join(process.argv[2], 'done')

// Runs the task unless it was done before. Correct only while nobody else runs the same one.
// A lock knows who is at work, not what is finished: that has to be noted with the work.
async function run(task) {
  if ((await readFile(done, 'utf8')).split('\n').includes(task)) return false
  await sleep(20) // the work
  await appendFile(done, `${task}\n`)
  return true
}

async function once(lock, task) {
  const hold = await lock.tryAcquire()
  // Not acknowledged, so that the queue delivers it again should that worker die.
  if (!hold) return 'busy'
  try {
    return (await run(task)) ? 'done' : 'known'
  } finally {
    await hold.release()
  }
}

const client = new Client()
for await (const task of createInterface({ input: process.stdin })) {
  console.log(task, await once(client.lock(`task:${task}`), task))
}
await client.close()
