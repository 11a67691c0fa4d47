'use strict'
// The tables of calls and holds: they keep what they are given, and make no garbage that is kept.

const assert = require('node:assert/strict')
const { Table } = require('../lib/table.js')
const { freshName, run, shared, test } = require('./support/index.js')

const context = shared()

test('a table does what a map does, whatever its size', () => {
  const [table, map] = [new Table(), new Map()]
  let seed = 1
  const random = (limit) => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) % limit
  let last = 0
  const add = () => {
    last += 1 + random(3)
    const value = { last }
    table.set(last, value)
    map.set(last, value)
  }
  const take = () => {
    const number = [...map.keys()][random(map.size)]
    assert.equal(table.take(number), map.get(number))
    assert.equal(table.take(number), undefined)
    map.delete(number)
  }
  for (const most of [3, 400, 5, 3000, 0]) {
    while (map.size !== most) {
      if (random(3) > 0 === map.size < most || map.size === 0) add()
      else take()
    }
    for (const [number, value] of map) assert.equal(table.get(number), value)
    assert.equal(table.get(last + 1), undefined)
  }
  const values = [1, 2, 3].map((number) => (table.set(number, { number }), table.get(number)))
  assert.deepEqual(new Set(table.takeAll()), new Set(values))
  assert.deepEqual([table.get(1), table.takeAll()], [undefined, []])
})

test('what a call leaves behind is young garbage, however old the program is', async () => {
  const ended = await run(
    context.url,
    `(async () => {
      const client = await Client.connect()
      const locks = Array.from({ length: 8 }, (_, at) => client.lock(${JSON.stringify(freshName())} + at))
      const work = async (lock) => {
        for (let pairs = 0; pairs < 25; pairs += 1) await (await lock.acquire()).release()
      }
      const round = async () => {
        await Promise.all(locks.map(work))
        gc({ type: 'minor' })
      }
      const old = () => require('node:v8').getHeapSpaceStatistics().find((space) => space.space_name === 'old_space')
      for (let rounds = 0; rounds < 10; rounds += 1) await round()
      gc()
      const before = old().space_used_size
      for (let rounds = 0; rounds < 30; rounds += 1) await round()
      console.log((old().space_used_size - before) / (30 * 8 * 25))
      await client.close()
    })()`,
    { flags: ['--expose-gc'] },
  )
  assert.deepEqual([ended.code, ended.stderr], [0, ''])
  assert.ok(Number(ended.stdout) < 100, `${ended.stdout.trim()} bytes of a pair are kept`)
})
