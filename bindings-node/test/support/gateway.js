'use strict'
// Redis over HTTP for tests: the REST form that hosted services have, before a server of a test's own.

const { once } = require('node:events')
const { createServer } = require('node:http')
const { setTimeout } = require('node:timers/promises')
const { Connection, GONE } = require('./server.js')

const TOKEN = 'the/secret+token=='

class Gateway {
  #connection
  #http
  #asking = 0
  asked = [] // the commands of each request
  mostAsking = 0 // how many requests were under way at a time
  delay = 0 // milliseconds until a request is done
  fault // answers in the place of Redis: it gets the response and the commands, and returns false for what it leaves to Redis

  // `port`: that of the server.
  static async start(port) {
    const gateway = new Gateway()
    gateway.server = port
    await gateway.open()
    return gateway
  }

  // Listens; again at the same port after `stop`.
  async open() {
    this.#connection = await Connection.open(this.server, (bytes) => bytes.toString('base64'))
    this.#http = createServer((request, response) => this.#handle(request, response).catch(() => response.destroy()))
    await once(this.#http.listen(this.port ?? 0, '127.0.0.1'), 'listening')
    this.port = this.#http.address().port
    this.place = `http://127.0.0.1:${this.port}`
    this.url = this.place.replace('//', `//:${encodeURIComponent(TOKEN)}@`)
  }

  async stop() {
    this.#connection.end()
    const closed = once(this.#http, 'close')
    this.#http.close()
    this.#http.closeAllConnections()
    await closed
  }

  async #handle(request, response) {
    this.#asking += 1
    this.mostAsking = Math.max(this.mostAsking, this.#asking)
    response.once('close', () => (this.#asking -= 1))
    const pieces = []
    for await (const piece of request) pieces.push(piece)
    const tell = (status, body) => response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
    if (request.method !== 'POST' || request.url !== '/pipeline') return tell(404, { error: 'ERR no such place' })
    if (request.headers.authorization !== `Bearer ${TOKEN}`) return tell(401, { error: 'WRONGPASS invalid or missing auth token' })
    const commands = JSON.parse(Buffer.concat(pieces))
    this.asked.push(commands)
    if (this.delay > 0) await setTimeout(this.delay)
    if (this.fault !== undefined && this.fault(response, commands) !== false) return undefined
    if (request.headers['upstash-encoding'] !== 'base64') return tell(400, { error: 'ERR only base64 carries the bytes of Redis' })
    const said = (error) => {
      if (error.message === GONE) throw error
      return { error: error.message }
    }
    const asked = commands.map((words) => this.#connection.send(...words).then((result) => ({ result }), said))
    const answers = await Promise.all(asked).catch(() => undefined)
    return answers === undefined ? tell(502, { error: 'ERR the server is gone' }) : tell(200, answers)
  }
}

module.exports = { Gateway, TOKEN }
