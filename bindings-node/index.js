'use strict'
const { internal, ...errors } = require('./lib/errors.js')

module.exports = {
  Client: require('./lib/client.js').Client,
  Lock: require('./lib/lock.js').Lock,
  MultiLock: require('./lib/lock.js').MultiLock,
  RwLock: require('./lib/lock.js').RwLock,
  Semaphore: require('./lib/lock.js').Semaphore,
  PlainSemaphore: require('./lib/counters.js').PlainSemaphore,
  PlainPermit: require('./lib/counters.js').PlainPermit,
  CountDownLatch: require('./lib/counters.js').CountDownLatch,
  Hold: require('./lib/hold.js').Hold,
  ...errors,
}
