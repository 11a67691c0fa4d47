'use strict'
// Where the server is, said by options instead of a URL; and the clients of other packages, which are refused.

const assert = require('node:assert/strict')
const { after, before } = require('node:test')
const { createClient } = require('@redis/client')
const Redis = require('ioredis')
const { AuthError, Client, InvalidArgumentError } = require('../index.js')
const { urlOf } = require('../lib/place.js')
const { Server, WASM, WINDOWS, freshName, shared, test } = require('./support/index.js')

const PASSWORD = 'p@ss:w/o%20rd #?'
const SECRET = '735129'
const context = shared()
let guarded

before(async () => {
  guarded = await Server.start({ args: ['--requirepass', PASSWORD] })
})

after(() => guarded?.stop())

async function works(...given) {
  const client = await Client.connect(...given)
  await client.lock(freshName()).using((hold) => hold.check())
  await client.close()
}

test('a server by its host, port and password', async () => {
  const place = { host: '127.0.0.1', port: guarded.port }
  await works({ ...place, password: PASSWORD, db: 3, tls: false, path: null, connectTimeout: '3s' })
  await works({ ...place, password: PASSWORD, username: 'default' })
  await works(null, { ...place, password: PASSWORD })
  await assert.rejects(works(place), AuthError)
})

test('a password beside a URL, and beside that of the environment', async () => {
  await works(guarded.url, { password: PASSWORD })
  await works(`${guarded.url}/5`, { username: 'default', password: PASSWORD })
  const before_ = process.env.REDLATCH_URL
  try {
    process.env.REDLATCH_URL = guarded.url
    await works({ password: PASSWORD })
    process.env.REDLATCH_URL = 'redis://not-to-be-used.invalid'
    await works({ host: '127.0.0.1', port: context.server.port })
  } finally {
    if (before_ === undefined) delete process.env.REDLATCH_URL
    else process.env.REDLATCH_URL = before_
  }
})

test('a server by its socket', { skip: WINDOWS && 'no such sockets there' }, () =>
  works({ path: guarded.socket, password: PASSWORD, db: 1 }),
)

test('a login beside the URL of a socket', { skip: WINDOWS && 'no such sockets there' }, async () => {
  await works(`unix://${guarded.socket}`, { password: PASSWORD })
  await works(`redis+unix://${guarded.socket}?db=1`, { username: 'default', password: PASSWORD })
})

test('options become the URL that the core reads', () => {
  const urls = [
    [{ host: 'h' }, 'redis://h/0'],
    [{ host: '::1', port: 7, tls: true }, 'rediss://[::1]:7/0'],
    [{ host: 'h', username: 'me', password: 'a b' }, 'redis://me:a%20b@h/0'],
    [{ path: '/a b?c', db: 2 }, 'unix:///a%20b%3Fc?db=2'],
    [{}, undefined],
  ]
  for (const [place, url] of urls) assert.equal(urlOf(undefined, place), url)
  const beside = [
    ['redis+sentinel://a,b/main', { password: 'c' }, 'redis+sentinel://:c@a,b/main'],
    ['unix:///run/redis.sock', { password: 'c&d +' }, 'unix:///run/redis.sock?pass=c%26d%20%2B'],
    ['unix:///run/redis.sock?db=2#x', { username: 'me', password: 'c' }, 'unix:///run/redis.sock?db=2&user=me&pass=c'],
    ['redis+unix:///s', { username: 'me' }, 'redis+unix:///s?user=me'],
    ['unix:///s?user=me', { username: '', password: '' }, 'unix:///s?user=me'],
  ]
  for (const [url, login, whole] of beside) assert.equal(urlOf(url, login), whole)
})

test('what is no place is refused, by its name and with the remedy', () => {
  const wrong = [
    [['redis://h', { host: 'h' }], /^host is given, and a URL is, too; give one of them$/],
    [['redis://a:b@h', { password: 'c' }], /^password is given, and the URL has a login, too; give one of them$/],
    [['unix:///s?pass=b', { username: 'c' }], /^username is given, and the URL has a login, too; give one of them$/],
    [['unix:///s?db=1&user=b', { password: 'c' }], /^password is given, and the URL has a login, too; give one of them$/],
    [['redis:///b@h', { password: 'c' }], /^password is given, and the URL has no host; write redis:\/\/[^@]*$/],
    [['h:6379', { password: 'c' }], /^password is given, and the URL has no host; write [^@]*$/],
    ...[`redis://:${SECRET}@h:6379`, `:${SECRET}@h`, `h?password=${SECRET}`, 'a/b'].map((host) => [
      [{ host }],
      /^host looks like a URL; give it as the first argument$/,
    ]),
    [[{ host: 'a,b' }], /^host is "a,b"; /],
    [[{ host: 5 }], /^host is 5; /],
    [[{ port: 6379 }], /^port is given without a host; give host, or a URL$/],
    [[{ host: 'h', port: 0 }], /^port is 0; give it a number from 1 to 65535$/],
    [[{ host: 'h', port: '6379' }], /^port is "6379"; give it a number from 1 to 65535$/],
    [[{ host: 'h', db: -1 }], /^db is -1; give it the number of a database$/],
    [[{ host: 'h', tls: {} }], /^tls is an object; give it true or false, and certificates to tlsCa, tlsCert and tlsKey$/],
    [[{ host: 'h', password: Number(SECRET) }], /^password is of type number; give it a string$/],
    [['redis://h', { password: [SECRET] }], /^password is of type object; give it a string$/],
    [[{ host: 'h', username: BigInt(SECRET) }], /^username is of type bigint; give it a string$/],
    [[{ host: 'h', password: `${SECRET}\ud800` }], /^password has half of a surrogate pair at index 6; /],
    [[{ path: '/s', host: 'h' }], /^host and path are given; /],
    ...[`s?pass=${SECRET}`, `redis://:${SECRET}@h`].map((path) => [[{ path }], /^path does not begin with \/; give the whole path of the socket$/]),
    [[{ zzz: 1 }], /"zzz" is no option of a client; there are .*connectTimeout.*, host, port, path, db, tls, username, password, connect$/],
  ]
  const before_ = process.env.REDLATCH_URL
  delete process.env.REDLATCH_URL
  try {
    for (const [given, message] of wrong) {
      assert.throws(() => new Client(...given), (error) => {
        assert.deepEqual([error.name, error.message.includes(SECRET)], ['InvalidArgumentError', false])
        assert.match(error.message, message)
        return true
      })
    }
  } finally {
    if (before_ !== undefined) process.env.REDLATCH_URL = before_
  }
})

test('the clients of ioredis and redis are refused with what to write', () => {
  const message =
    'the client of another package is given; redlatch has connections of its own, ' +
    'write new Client({ host, port, password }) or new Client(url)'
  const ioredis = new Redis(`rediss://u:${SECRET}@h:1/3`, { lazyConnect: true })
  for (const client of [ioredis, createClient()]) {
    assert.throws(() => new Client(client), { message, name: InvalidArgumentError.name })
    assert.throws(() => new Client(client, {}), { message })
  }
  ioredis.disconnect() // it keeps timers, connected or not
})

test('a stream of the program is for the WebAssembly part', { skip: WASM && 'it is taken' }, () => {
  assert.throws(() => new Client(context.url, { connect: () => {} }), (error) => {
    assert.ok(error instanceof InvalidArgumentError)
    assert.match(error.message, /connect is given.*REDLATCH_WASM=1/)
    return true
  })
})
