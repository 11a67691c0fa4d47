'use strict'
// Clients of a Sentinel set and of a cluster. Run with REDLATCH_WASM=1; the native part passes as well.

const assert = require('node:assert/strict')
const { after, before, describe } = require('node:test')
const {
  AuthError,
  Client,
  InvalidArgumentError,
  NameNotClusterableError,
  NotReplicatedError,
  UnavailableError,
} = require('../../index.js')
const { freshName, test, until } = require('../support/index.js')
const { Server, Silent } = require('../support/server.js')
const { Cluster, SentinelSet } = require('../support/sets.js')

// A waiter that only a message wakes. `meanwhile` is done while it waits.
async function isWoken(url, name, listens, meanwhile = () => {}, options = {}) {
  const holder = await Client.connect(url, options)
  const waiter = await Client.connect(url, { ...options, recheck: 3_600_000, tracking: false })
  const hold = await holder.lock(name).acquire()
  const waiting = waiter.lock(name).acquire()
  await until(listens)
  await meanwhile()
  await hold.release()
  const next = await waiting
  assert.equal(next.isHeld, true)
  await next.release()
  await Promise.all([holder.close(), waiter.close()])
}

describe('Sentinel', () => {
  let set
  before(async () => (set = await SentinelSet.start({ password: 'servers', guard: 'sentinels' })))
  after(() => set?.stop())

  const listens = async () => (await set.nodes[await set.primary()].send('PUBSUB', 'CHANNELS', 'redisson_*')).length === 1

  for (const protocol of ['auto', 'resp2']) {
    test(`the primary is found and wakes a waiter, with ${protocol}`, async () => {
      const name = freshName()
      await isWoken(set.url, name, listens, undefined, { protocol })
      await until(async () => (await set.nodes[0].send('EXISTS', name)) === 0)
    })
  }

  test('a sentinel that is down or silent costs nothing', async (t) => {
    const silent = await Silent.start()
    t.after(() => silent.stop())
    const url = set.url.replace('@', `@127.0.0.1:${silent.port},127.0.0.1:1,`)
    // Nothing ends the wait for the silent one in the time of this test.
    const client = await Client.connect(url, { connectTimeout: 300_000 })
    await client.lock(freshName()).using((hold) => assert.equal(hold.isHeld, true))
    assert.ok(silent.met >= 1)
    await client.close()
    await until(() => silent.sockets.size === 0)
  })

  test('a wrong service, a wrong password, and sentinels that are not there are told', async () => {
    await assert.rejects(Client.connect(set.url.replace('/redlatch', '/other')), (error) => {
      assert.ok(error instanceof InvalidArgumentError, `${error}`)
      assert.match(error.message, /no sentinel watches a service named "other"/)
      return true
    })
    await assert.rejects(Client.connect(set.url.replace('=sentinels', '=wrong')), AuthError)
    await assert.rejects(Client.connect(set.url.replace(':servers@', ':wrong@')), AuthError)
    await assert.rejects(Client.connect('redis+sentinel://127.0.0.1:1/redlatch'), UnavailableError)
  })

  test('the next primary is followed, by holders and by waiters', async () => {
    const client = await Client.connect(set.url)
    const waiter = await Client.connect(set.url, { recheck: 3_600_000, tracking: false })
    const name = freshName()
    const hold = await client.lock(name, { replicas: 1 }).acquire()
    const waiting = waiter.lock(name).acquire()
    await until(listens)
    const before = await set.primary()
    await set.failOver()
    await until(async () => (await set.primary()) === 1 - before)
    await until(listens)
    await hold.extend(20_000)
    await until(async () => (await set.nodes[1 - before].send('PTTL', name)) > 10_000)
    await hold.release()
    await (await waiting).release()
    // The old primary is a replica now: a lock on the new one is seen there.
    await client.lock(name).using(() => until(async () => (await set.nodes[1 - before].send('EXISTS', name)) === 1))
    await Promise.all([client.close(), waiter.close()])
    await isWoken(set.url, freshName(), listens)
  })

  test('a primary that hangs is left', async (t) => {
    const hanging = await SentinelSet.start()
    t.after(() => hanging.stop())
    // The reason that is told shows that the announcement has ended the connection. A sentinel that is asked needs no votes of the
    // others: an election on a busy machine can take longer than the client stands silence.
    const told = []
    const waiter = await Client.connect(hanging.url, { recheck: 3_600_000, tracking: false })
    waiter.on('event', ({ kind, text }) => kind === 'disconnected' && told.push(text))
    const holder = await Client.connect(hanging.url)
    const name = freshName()
    const hold = await holder.lock(name, { replicas: 1, lease: 600_000 }).acquire()
    const waiting = waiter.lock(name).acquire()
    const [first, second] = hanging.nodes
    const listened = async (node) => (await node.send('PUBSUB', 'CHANNELS', 'redisson_*')).length === 1
    await until(() => listened(first))
    await first.hang()
    await hanging.failOver()
    await until(async () => (await second.send('ROLE'))[0] === 'master')
    await until(() => listened(second))
    assert.match(told.join(), /leads to a primary that was replaced/)
    await hold.release()
    await (await waiting).release()
    await Promise.all([holder.close(), waiter.close()])
  })
})

describe('Cluster', () => {
  let cluster
  before(async () => (cluster = await Cluster.start()))
  after(() => cluster?.stop())

  const quiet = async () => (await cluster.listened()).join() === '0,0'

  test('locks of all slots, from one seed', async () => {
    const client = await Client.connect(`redis+cluster://127.0.0.1:${cluster.nodes[2].port}`)
    const names = await Promise.all([0, 1, 2].map((at) => cluster.nameAt(at, freshName())))
    const holds = await Promise.all(names.map((name) => client.lock(name, { fencing: true }).acquire()))
    for (const [at, name] of names.entries()) assert.equal(await cluster.nodes[at].send('EXISTS', name), 1)
    const many = await Promise.all(Array.from({ length: 300 }, (_, at) => client.lock(`${names[0]}:${at}`).acquire()))
    await Promise.all([...holds, ...many].map((hold) => hold.release()))
    for (const [at, name] of names.entries()) assert.equal(await cluster.nodes[at].send('EXISTS', name), 0)
    await client.close()
  })

  for (const [clusterPubsub, expected] of [['auto', '0,1'], ['classic', '1,0'], ['sharded', '0,1'], ['both', '1,1']]) {
    test(`a waiter is woken with clusterPubsub ${clusterPubsub}`, async () => {
      await until(quiet)
      const listens = async () => (await cluster.listened()).join() === expected
      await isWoken(cluster.url, freshName(), listens, undefined, { clusterPubsub })
    })
  }

  test('a waiter is woken with RESP2, and where the channel lies at another node', async () => {
    await until(quiet)
    const listens = async () => !(await quiet())
    await isWoken(cluster.url, freshName(), listens, undefined, { protocol: 'resp2' })
    await until(quiet)
    for (const name of ['a{b', '{}x']) {
      await isWoken(cluster.url, name, listens)
      await until(quiet)
    }
  })

  test('a slot moves while its locks are held and waited for', async () => {
    await until(quiet)
    const name = await cluster.nameAt(0, freshName())
    const slot = await cluster.nodes[0].send('CLUSTER', 'KEYSLOT', name)
    const client = await Client.connect(cluster.url)
    await cluster.beginMove(slot, 0, 1)
    // The lock is not there yet: the old node sends the call on with ASK.
    const hold = await client.lock(name).acquire()
    assert.equal(await cluster.nodes[0].send('EXISTS', name).catch(() => 0), 0)
    await hold.extend(20_000)
    await hold.release()
    const listens = async () => (await cluster.listened()).join() === '0,1'
    // A waiter looks again at the end of the lease, which this test does not reach.
    const options = { watchdogLease: 600_000 }
    const move = async () => {
      await cluster.moveKeys(slot, 0, 1)
      await cluster.endMove(slot, 0, 1)
      await until(async () => (await cluster.nodes[1].send('PUBSUB', 'SHARDCHANNELS', 'redisson_*')).length === 1)
    }
    await isWoken(cluster.url, name, listens, move, options)
    // The map that the client has is an old one: MOVED.
    await client.lock(name).using((again) => assert.equal(again.isHeld, true))
    await client.close()
  })

  test('names of two slots and a server that is in no cluster are told', async (t) => {
    const client = await Client.connect(cluster.url)
    await assert.rejects(client.lock('a{b', { fencing: true }).acquire(), NameNotClusterableError)
    await client.close()
    await assert.rejects(Client.connect('redis+cluster://127.0.0.1:1'), UnavailableError)
    const alone = await Server.start()
    t.after(() => alone.stop())
    await assert.rejects(Client.connect(`redis+cluster://127.0.0.1:${alone.port}`), (error) => {
      assert.match(error.message, /cluster/)
      return true
    })
  })

  test('a seed that is silent costs nothing and is left', async (t) => {
    const silent = await Silent.start()
    t.after(() => silent.stop())
    const client = await Client.connect(cluster.url.replace('//', `//127.0.0.1:${silent.port},`), { connectTimeout: 300_000 })
    await client.lock(freshName()).using((hold) => assert.equal(hold.isHeld, true))
    assert.ok(silent.met >= 1)
    await until(() => silent.sockets.size === 0)
    await client.close()
  })

  test('a lock waits for the replica of its node', async () => {
    const client = await Client.connect(cluster.url)
    const name = await cluster.nameAt(0, freshName())
    const hold = await client.lock(name, { replicas: 1 }).acquire()
    // A replica counts its own keys, and sends no one elsewhere for that.
    const slot = await cluster.nodes[0].send('CLUSTER', 'KEYSLOT', name)
    assert.equal(await cluster.nodes[3].send('CLUSTER', 'COUNTKEYSINSLOT', slot), 1)
    await hold.release()
    await assert.rejects(client.lock(name, { replicas: 2 }).acquire({ wait: 0 }), NotReplicatedError)
    await client.close()
  })

  // The last one: a primary does not come back.
  test('the replica of a primary that dies is followed', async () => {
    const client = await Client.connect(cluster.url)
    const [name, other] = await Promise.all([0, 1].map((at) => cluster.nameAt(at, freshName())))
    const hold = await client.lock(name, { replicas: 1, watchdogLease: 20_000 }).acquire()
    const dead = cluster.nodes.shift()
    await dead.stop()
    await client.lock(other).using((held) => assert.equal(held.isHeld, true))
    await until(async () => (await cluster.nodes[2].send('ROLE'))[0] === 'master')
    await hold.extend(30_000)
    assert.ok((await cluster.nodes[2].send('PTTL', name)) > 20_000)
    await hold.release()
    await isWoken(cluster.url, name, async () => (await cluster.listened()).join() === '0,1')
    await client.close()
  })
})
