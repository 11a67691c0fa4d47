'use strict'
// Worker threads: each has its own clients; one that ends in the middle of something harms nobody.

const assert = require('node:assert/strict')
const { once } = require('node:events')
const { Worker } = require('node:worker_threads')
const { PACKAGE, freshName, run, shared, test, until } = require('./support/index.js')

const context = shared()

function start(text, workerData = {}) {
  const code = `
    const { parentPort, workerData } = require('node:worker_threads')
    const { Client } = require(${JSON.stringify(PACKAGE)})
    ;(async () => {${text}})()`
  return new Worker(code, { eval: true, workerData: { url: context.url, ...workerData } })
}

async function ended(worker) {
  const failed = once(worker, 'error').then(([error]) => Promise.reject(error))
  const [code] = await Promise.race([once(worker, 'exit'), failed])
  return code
}

test('many workers exclude each other', async () => {
  const rounds = 50
  const name = freshName()
  const counter = new Int32Array(new SharedArrayBuffer(4))
  const workers = Array.from({ length: 6 }, () =>
    start(
      `const client = await Client.connect(workerData.url)
       const lock = client.lock(workerData.name)
       for (let round = 0; round < workerData.rounds; round += 1) {
         await lock.using(async () => {
           const seen = workerData.counter[0]
           await new Promise(setImmediate)
           workerData.counter[0] = seen + 1
         })
       }
       await client.close()`,
      { name, counter, rounds },
    ),
  )
  assert.deepEqual(await Promise.all(workers.map(ended)), workers.map(() => 0))
  assert.equal(counter[0], rounds * workers.length)
})

test('a waiting acquire keeps a worker alive, a held lock does not', async () => {
  const name = freshName()
  const hold = await context.client.lock(name).acquire()
  const worker = start(
    `const client = await Client.connect(workerData.url)
     const waiting = client.lock(workerData.name).acquire()
     parentPort.postMessage('waiting')
     const hold = await waiting
     parentPort.postMessage(hold.isHeld)`,
    { name },
  )
  assert.deepEqual(await once(worker, 'message'), ['waiting'])
  const done = ended(worker)
  const told = once(worker, 'message') // it may come before the answer to the release
  await hold.release()
  assert.deepEqual(await told, [true])
  assert.equal(await done, 0)
})

test('a worker that is terminated with work pending harms nobody, and its lock is released', async () => {
  for (let round = 0; round < 10; round += 1) {
    const name = freshName()
    const worker = start(
      `const clients = [await Client.connect(workerData.url), await Client.connect(workerData.url)]
       const hold = await clients[0].lock(workerData.name, { watchdogLease: '1h' }).acquire()
       hold.signal.addEventListener('abort', () => {})
       for (const client of clients) client.lock(workerData.name).acquire()
       parentPort.postMessage('holds')
       const busy = clients[1].lock(workerData.name + ':busy')
       for (;;) await busy.using(() => {})`,
      { name },
    )
    await once(worker, 'message')
    if (round % 2 === 1) await new Promise((resolve) => setTimeout(resolve, round))
    await worker.terminate()
    const hold = await context.client.lock(name).acquire({ wait: 30_000 })
    assert.equal(hold.holdCount, 1)
    await hold.release()
  }
  // Their waiters are gone as well.
  await until(async () => (await context.redis.send('PUBSUB', 'CHANNELS', '*')).length === 0, 'no subscription is left')
})

test('a worker that calls process.exit with work pending', async () => {
  const worker = start(
    `const client = await Client.connect(workerData.url)
     await client.lock(workerData.name).acquire()
     client.lock(workerData.name).acquire()
     process.exit(5)`,
    { name: freshName() },
  )
  assert.equal(await ended(worker), 5)
})

test('a package that only workers load, in a process that ends at once', async () => {
  const result = await run(
    context.url,
    `const { Worker } = require('node:worker_threads')
     const code = \`const { Client } = require(\${JSON.stringify(require.resolve(${JSON.stringify(PACKAGE)}))})
       const { parentPort } = require('node:worker_threads')
       Client.connect().then(async (client) => {
         const hold = await client.lock('only-workers:' + require('node:worker_threads').threadId).acquire()
         parentPort.postMessage(hold.isHeld)
         setInterval(() => {}, 1000)
       })\`
     const workers = Array.from({ length: 4 }, () => new Worker(code, { eval: true }))
     Promise.all(workers.map((worker) => new Promise((resolve) => worker.once('message', resolve))))
       .then((held) => { console.log(held.join()); process.exit(0) })`,
  )
  assert.deepEqual([result.code, result.signal, result.stdout], [0, null, 'true,true,true,true\n'], result.stderr)
})
