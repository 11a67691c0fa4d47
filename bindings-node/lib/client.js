'use strict'
const diagnostics = require('node:diagnostics_channel')
const { EventEmitter } = require('node:events')
const { internal } = require('./errors.js')
const { border, clients, resultOf, tellEvents } = require('./border.js')
const { Family, Lock } = require('./lock.js')
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
    return new Lock(this.#family(text('the lock name', name), options), name)
  }

  // What locks with these options have in common, which those that were given before may have had too.
  #family(name, given) {
    const { own, names = [], values = [] } = split(given, ['context'])
    const { options: before, family } = this.#latest
    const options = [own.context, ...names, ...values]
    if (before?.length === options.length && before.every((each, at) => Object.is(each, options[at]))) {
      unwrap(family.locks.name(name))
      return family
    }
    const made = new Family(this, unwrap(this.#native.locks(name, names, values), names), own.context)
    this.#latest = { options, family: made }
    return made
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
