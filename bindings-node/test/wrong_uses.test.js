'use strict'
// A wrong use is told what is wrong, word for word: conformance/wrong_uses.json has the texts of every language.

const assert = require('node:assert/strict')
const { existsSync, readFileSync, writeFileSync } = require('node:fs')
const { join } = require('node:path')
const { Client, LockError } = require('../index.js')
const { PACKAGE, WASM, aborted, shared, test } = require('./support/index.js')

const context = shared()
const file = join(PACKAGE, '../conformance/wrong_uses.json')

// The table has the texts of the native part. The WebAssembly part knows HTTP, and has Node.js read files.
const left = WASM ? /the URL of something else|a certificate that is not there/ : /^$/

test('every wrong use is told what is wrong and what to do', { skip: !existsSync(file) && 'the table is in the checkout only' }, async () => {
  const { client, redis, url } = context
  const server = new URL(url).host
  const closed = await Client.connect(url)
  await closed.close()
  const lost = await client.lock('lost').acquire()
  await redis.send('DEL', 'lost')
  await aborted(lost.signal)
  const released = await client.lock('released').acquire()
  await released.release()
  const held = client.lock('held')
  const holder = await held.acquire()
  await redis.send('SET', 'data', 'mine')
  const sides = client.rwLock('sides')
  const reader = await sides.read.acquire({ key: 7 })
  const latch = client.latch('latch')
  await latch.trySetCount(1)
  const nowhere = 'redis://127.0.0.1:1' // below the ports that systems give to programs
  // Nobody connects to these servers.
  const quorum = new Client('redis+quorum://a,b,c')
  const given = { Client, client, quorum, url, server, closed, lost, released, held, sides, latch, lock: client.lock('n'), nowhere }
  const rows = JSON.parse(readFileSync(file, 'utf8'))
  const wrong = []
  for (const row of rows) {
    const [what, { node }] = row
    assert.ok(node?.length > 0, `${what}: no column node`)
    if (typeof node === 'string' || left.test(what)) continue // a text says why there is no such use
    const use = new Function(...Object.keys(given), `return ${node[0]}`)
    const error = await (async () => use(...Object.values(given)))().catch((thrown) => thrown)
    // Systems and servers have words of their own.
    const told = `${error?.message}`
      .replace(server, 'SERVER')
      .replace(/127\.0\.0\.1:\d+: [^;]+/, 'NOWHERE: REFUSED')
      .replace(/the server said "[^"]*/, 'the server said "...')
    const text = error instanceof LockError ? `${error.name}: ${told}` : `nothing is wrong: ${error}`
    if (process.env.REDLATCH_BLESS === '1') node[1] = text
    if (text !== node[1]) wrong.push(`${what}: ${text}, not ${node[1]}`)
  }
  assert.deepEqual(wrong, [])
  if (process.env.REDLATCH_BLESS === '1') writeFileSync(file, `${JSON.stringify(rows, undefined, 2)}\n`)
  await holder.release()
  await reader.release()
  assert.equal(await lost.release(), false)
})
