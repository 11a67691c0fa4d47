// The usage of the process: KiB, threads, open files.
import { readFileSync, readdirSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { getHeapStatistics } from 'node:v8'

// V8's own memory comes and goes: of its heap only that counts which is left after a collection (node --expose-gc), and what a
// hold needed goes in the turn after the hold.
export async function usage() {
  globalThis.gc()
  await sleep(50)
  globalThis.gc()
  const resident = Number(readFileSync('/proc/self/status', 'utf8').match(/VmRSS:\s+(\d+)/)[1])
  const { total_physical_size: heap, used_heap_size: used } = getHeapStatistics()
  const [threads, files] = ['task', 'fd'].map(what => readdirSync(`/proc/self/${what}`).length)
  return { memory: resident - Math.round((heap - used) / 1024), threads, files }
}
