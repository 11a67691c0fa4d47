// The usage of the process: resident KiB, threads, open files.
import { readFileSync, readdirSync } from 'node:fs'

export function usage() {
  const memory = Number(readFileSync('/proc/self/status', 'utf8').match(/VmRSS:\s+(\d+)/)[1])
  const [threads, files] = ['task', 'fd'].map(what => readdirSync(`/proc/self/${what}`).length)
  return { memory, threads, files }
}
