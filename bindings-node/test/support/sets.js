'use strict'
// Servers that belong together: a Sentinel set and a cluster of a test's own.

const { Connection, Server, freePort } = require('./server.js')
const { until } = require('./index.js')

const SLOTS = 16384
const SERVICE = 'main'

// Asks a server from outside. A connection for each question: sentinels cut those of a server whose role they change.
class Look {
  constructor({ port }, password) {
    this.port = port
    this.password = password
  }

  async send(...words) {
    for (;;) {
      const connection = await Connection.open(this.port)
      try {
        if (this.password !== undefined) await connection.send('AUTH', this.password)
        return await connection.send(...words)
      } catch (error) {
        if (error.message !== 'connection closed') throw error
      } finally {
        connection.end()
      }
    }
  }
}

// Several servers, each with what looks at it.
class Many {
  servers = []
  looks = []

  // A set that does not come up leaves no server behind.
  static async start(options) {
    const set = new this()
    try {
      await set.build(options)
    } catch (error) {
      await set.stop()
      throw error
    }
    return set
  }

  async add(options, password) {
    const server = await Server.start(options)
    this.servers.push(server)
    this.looks.push(new Look(server, password))
  }

  async stop() {
    // Sentinels end first. A sentinel that outlives its servers makes a replica of any server that starts on one of their ports.
    for (const server of this.servers.toReversed()) await server.stop()
  }

  get hosts() {
    return this.servers.map(({ port }) => `127.0.0.1:${port}`)
  }
}

// A primary, a replica, and three sentinels that watch them. `password` is the password of the servers, `guard` that of the sentinels.
// `downAfter`: after how many milliseconds of silence they give a server up.
class SentinelSet extends Many {
  async build({ password, guard, downAfter = 5000 } = {}) {
    const secret = password === undefined ? [] : ['--requirepass', password, '--masterauth', password]
    const args = ['--repl-diskless-sync-delay', '0', ...secret]
    for (let count = 0; count < 2; count += 1) await this.add({ args }, password)
    const { port } = this.servers[0]
    await this.looks[1].send('REPLICAOF', '127.0.0.1', port)
    await until(async () => (await this.looks[1].send('INFO', 'replication')).includes('master_link_status:up'))
    const watch = [
      `sentinel monitor ${SERVICE} 127.0.0.1 ${port} 2`,
      `sentinel down-after-milliseconds ${SERVICE} ${downAfter}`,
      `sentinel failover-timeout ${SERVICE} 10000`,
    ]
    if (password !== undefined) watch.push(`sentinel auth-pass ${SERVICE} ${password}`)
    if (guard !== undefined) watch.push(`requirepass ${guard}`)
    for (let count = 0; count < 3; count += 1) await this.add({ config: watch }, guard)
    await until(async () => {
      const seen = await Promise.all(this.sentinels.map((look) => look.send('SENTINEL', 'MASTER', SERVICE)))
      const field = (fields, name) => fields[fields.indexOf(name) + 1]
      return seen.every((fields) => field(fields, 'num-slaves') === '1' && field(fields, 'num-other-sentinels') === '2')
    })
    const login = password === undefined ? '' : `:${password}@`
    this.url = `redis+sentinel://${login}${this.hosts.slice(2)}/${SERVICE}${guard === undefined ? '' : `?sentinel_password=${guard}`}`
  }

  get sentinels() {
    return this.looks.slice(2)
  }

  // Has the replica take over while the primary is alive.
  async failOver() {
    await until(() => this.sentinels[0].send('SENTINEL', 'FAILOVER', SERVICE).then(() => true, () => false))
  }

  async primary() {
    const roles = await Promise.all(this.looks.slice(0, 2).map((look) => look.send('ROLE')))
    return roles.findIndex(([role]) => role === 'master')
  }
}

// A cluster of three primaries, with the slots spread over them, and a replica of the first.
class Cluster extends Many {
  async build(options = []) {
    for (let count = 0; count < 4; count += 1) {
      const mode = ['--cluster-enabled', 'yes', '--cluster-port', `${await freePort()}`, '--cluster-node-timeout', '1000']
      const quick = ['--repl-diskless-sync-delay', '0', '--cluster-replica-validity-factor', '0']
      await this.add({ args: [...mode, ...quick, ...options] })
    }
    const { looks, servers } = this
    const buses = await Promise.all(looks.map(async (look) => (await look.send('CONFIG', 'GET', 'cluster-port'))[1]))
    for (const [at, look] of looks.entries()) {
      await look.send('CLUSTER', 'SET-CONFIG-EPOCH', at + 1)
      if (at > 0) await look.send('CLUSTER', 'MEET', '127.0.0.1', servers[0].port, buses[0])
      if (at < 3) await look.send('CLUSTER', 'ADDSLOTSRANGE', Math.floor((SLOTS * at) / 3), Math.floor((SLOTS * (at + 1)) / 3) - 1)
    }
    const id = await looks[0].send('CLUSTER', 'MYID')
    await until(() => looks[3].send('CLUSTER', 'REPLICATE', id).then(() => true, () => false))
    await until(async () => {
      const states = await Promise.all(looks.map((look) => look.send('CLUSTER', 'INFO')))
      const seen = await Promise.all(looks.map((look) => look.send('CLUSTER', 'NODES')))
      const link = await looks[3].send('INFO', 'replication')
      return (
        states.every((state) => state.includes('cluster_state:ok')) &&
        seen.every((nodes) => nodes.match(/ connected/g)?.length === 4 && nodes.includes('slave ')) &&
        link.includes('master_link_status:up')
      )
    })
    this.url = `redis+cluster://${this.hosts}`
  }

  // A name whose slot this primary has had from the start.
  async nameAt(primary, prefix) {
    for (let count = 0; ; count += 1) {
      const slot = await this.looks[0].send('CLUSTER', 'KEYSLOT', `${prefix}:${count}`)
      if (Math.floor((slot * 3) / SLOTS) === primary) return `${prefix}:${count}`
    }
  }

  // One primary takes a slot in and the other gives it away.
  async beginMove(slot, from, to) {
    const [here, there] = await Promise.all([from, to].map((at) => this.looks[at].send('CLUSTER', 'MYID')))
    await this.looks[to].send('CLUSTER', 'SETSLOT', slot, 'IMPORTING', here)
    await this.looks[from].send('CLUSTER', 'SETSLOT', slot, 'MIGRATING', there)
  }

  async moveKeys(slot, from, to) {
    for (const key of await this.looks[from].send('CLUSTER', 'GETKEYSINSLOT', slot, 1000)) {
      await this.looks[from].send('MIGRATE', '127.0.0.1', this.servers[to].port, key, 0, 5000)
    }
  }

  async endMove(slot, from, to) {
    const id = await this.looks[to].send('CLUSTER', 'MYID')
    for (const at of [to, from, ...[0, 1, 2].filter((other) => ![from, to].includes(other))]) {
      await this.looks[at].send('CLUSTER', 'SETSLOT', slot, 'NODE', id)
    }
  }

  // How many channels of locks are listened to: for all nodes, and for one node alone.
  async listened() {
    const of = async (words) => {
      const channels = await Promise.all(this.looks.map((look) => look.send('PUBSUB', words, 'redisson_*').catch(() => [])))
      return channels.flat().length
    }
    return [await of('CHANNELS'), await of('SHARDCHANNELS')]
  }
}

module.exports = { Cluster, SERVICE, SentinelSet }
