'use strict'
// Servers that belong together: a Sentinel set and a cluster of a test's own.

const { Started } = require('./server.js')

const SLOTS = 16384

// A primary, a replica, and three sentinels that watch them. `password` is the password of the servers, `guard` that of the sentinels.
class SentinelSet extends Started {
  static start({ password = '', guard = '' } = {}) {
    return super.start('sentinel', [], { replicas: 1, password, sentinel_password: guard })
  }

  // Has the replica take over while the primary is alive.
  async failOver() {
    await this.call('failover')
  }

  async primary() {
    const roles = await Promise.all(this.nodes.map((node) => node.send('ROLE')))
    return roles.findIndex(([role]) => role === 'master')
  }
}

// A cluster of three primaries, with the slots spread over them, and a replica of the first.
class Cluster extends Started {
  static start() {
    return super.start('cluster', [], { replicas: 1, node_timeout_ms: 1000 })
  }

  // A name whose slot this primary has had from the start.
  async nameAt(primary, prefix) {
    for (let count = 0; ; count += 1) {
      const slot = await this.nodes[0].send('CLUSTER', 'KEYSLOT', `${prefix}:${count}`)
      if (Math.floor((slot * 3) / SLOTS) === primary) return `${prefix}:${count}`
    }
  }

  // The steps in which a slot moves: one primary takes it in and the other gives it away; its keys; it is the other's.
  async beginMove(slot, from, to) {
    await this.call('begin_move', slot, this.nodes[from], this.nodes[to])
  }

  async moveKeys(slot, from, to) {
    await this.call('move_keys', slot, this.nodes[from], this.nodes[to])
  }

  async endMove(slot, from, to) {
    await this.call('end_move', slot, this.nodes[from], this.nodes[to])
  }

  // How many channels of locks are listened to: for all nodes, and for one node alone.
  async listened() {
    const of = async (words) => {
      const channels = await Promise.all(this.nodes.map((node) => node.send('PUBSUB', words, 'redisson_*').catch(() => [])))
      return channels.flat().length
    }
    return [await of('CHANNELS'), await of('SHARDCHANNELS')]
  }
}

module.exports = { Cluster, SentinelSet }
