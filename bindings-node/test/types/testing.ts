// Each member of the server in memory is used once. types.test.js compiles this, and runs it natively.
import { strict as assert } from 'node:assert'
import { MemoryServer } from 'redlatch/testing'

using server = new MemoryServer()
const url: string = server.url
assert.equal(server.takeAway(url) satisfies boolean, false)
server.advance('1s')
server.advance(1000)
for (const change of ['empty', 'pause', 'resume', 'disconnect'] as const) server[change]()
console.log('done')
