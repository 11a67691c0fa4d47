'use strict'
// Encrypted connections: the server of the tests behind a terminator of TLS.

const assert = require('node:assert/strict')
const { once } = require('node:events')
const { readFileSync } = require('node:fs')
const net = require('node:net')
const { join } = require('node:path')
const { after, before } = require('node:test')
const tls = require('node:tls')
const { AuthError, Client, InvalidArgumentError } = require('../index.js')
const { PACKAGE, freshName, runNode, shared, test } = require('./support/index.js')

const context = shared()
const made = (name) => join(__dirname, '../../core/tests/tls', name)
const ca = made('ca.pem')

let terminator
let url

before(async () => {
  const certificate = { cert: readFileSync(made('server.pem')), key: readFileSync(made('server.key')) }
  terminator = tls.createServer(certificate, (outer) => {
    const inner = net.connect(context.server.port, '127.0.0.1')
    for (const socket of [outer, inner]) socket.on('error', () => [outer, inner].forEach((each) => each.destroy()))
    outer.pipe(inner).pipe(outer)
  })
  await once(terminator.listen(0, '127.0.0.1'), 'listening')
  url = `rediss://localhost:${terminator.address().port}`
})

after(() => terminator.close())

function refusal(errorClass, word) {
  return (error) => {
    assert.ok(error instanceof errorClass, `${error}`)
    assert.ok(error.message.includes(word), `${word} is not in: ${error.message}`)
    return true
  }
}

test('a lock over TLS', async () => {
  for (const tlsCa of [ca, readFileSync(ca, 'utf8')]) {
    const client = await Client.connect(url, { tlsCa })
    await client.lock(freshName()).using((hold) => assert.equal(hold.isHeld, true))
    await client.close()
  }
})

test('an authority that is not trusted', async () => {
  await assert.rejects(Client.connect(url, { tlsCa: made('other.pem') }), refusal(AuthError, 'give tlsCa the certificate'))
})

test('an authority that is not trusted is refused whatever the environment says', async () => {
  const program = `
    const { Client } = require(${JSON.stringify(PACKAGE)})
    Client.connect(${JSON.stringify(url)}).catch(({ code }) => console.log(code))`
  const env = { NODE_TLS_REJECT_UNAUTHORIZED: '0', NODE_NO_WARNINGS: '1' }
  const { stdout, stderr } = await runNode(['-e', program], env)
  assert.equal(stdout, 'ERR_REDLATCH_AUTH\n', stderr)
})

test('options of TLS are checked', () => {
  assert.throws(() => new Client(context.url, { tlsCa: ca }), refusal(InvalidArgumentError, 'rediss'))
  assert.throws(() => new Client(url, { tlsCa: ca, tlsCert: ca }), refusal(InvalidArgumentError, 'give both'))
})
