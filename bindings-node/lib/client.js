'use strict'
const diagnostics = require('node:diagnostics_channel')
const { EventEmitter } = require('node:events')
const { internal } = require('./errors.js')
const { border, clients, resultOf, tellEvents } = require('./border.js')
const { Lock } = require('./lock.js')
const { camel } = require('./names.js')
const { plain, split, text } = require('./options.js')
const { unwrap } = internal

const channel = diagnostics.channel('redlatch')
const collected = new FinalizationRegistry((id) => clients.delete(id))

class Client extends EventEmitter {
  #native
  #latest = {}

  constructor(url, options) {
    super()
    if (options === undefined && typeof url === 'object' && url !== null) [url, options] = [undefined, url]
    const { names, values } = split(options, [])
    // A worker thread has an environment of its own, which the core cannot see.
    url ??= process.env.REDLATCH_URL || undefined
    this.#native = unwrap(border.client(url === undefined ? url : text('the URL', url), names, values), names)
    const { id } = this.#native
    clients.set(id, new WeakRef(this))
    collected.register(this, id)
  }

  static async connect(url, options) {
    const client = new this(url, options)
    try {
      await resultOf(client.#native.ready())
    } catch (error) {
      await client.close()
      throw error
    }
    return client
  }

  lock(name, options) {
    const { own, names = [], values = [] } = split(options, ['context'])
    return new Lock(this.#locks(text('the lock name', name), names, values), name, this, own.context)
  }

  // What locks with these options have in common, which those that were given before may have had too.
  #locks(name, names, values) {
    const { given, locks } = this.#latest
    const options = [...names, ...values]
    if (given?.length === options.length && given.every((each, at) => Object.is(each, options[at]))) {
      unwrap(locks.name(name))
      return this.#latest
    }
    const made = unwrap(this.#native.locks(name, names, values), names)
    this.#latest = { given: options, locks: made, acquire: made.acquire() }
    return this.#latest
  }

  stats() {
    return Object.fromEntries(unwrap(this.#native.stats()).map(({ name, value }) => [camel(name), value]))
  }

  async close(limit) {
    return resultOf(this.#native.close(limit === undefined ? undefined : plain('the limit', limit)))
  }

  async [Symbol.asyncDispose]() {
    await this.close()
  }

  [tellEvents]() {
    for (const event of unwrap(this.#native.events())) {
      // Later, because a listener may throw.
      process.nextTick(() => {
        if (channel.hasSubscribers) channel.publish({ ...event, client: this })
        this.emit('event', event)
      })
    }
  }
}

module.exports = { Client }
