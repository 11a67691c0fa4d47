'use strict'
// Redis over HTTP for tests: the REST form that hosted services have, before a server of a test's own.

const { once } = require('node:events')
const { createServer } = require('node:http')
const net = require('node:net')
const { setTimeout } = require('node:timers/promises')

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
    this.#connection = await Pipe.open(this.server)
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
    const encode = request.headers['upstash-encoding'] === 'base64' ? 'base64' : 'utf8'
    const answers = await Promise.all(commands.map((words) => this.#connection.send(words, encode))).catch(() => undefined)
    return answers === undefined ? tell(502, { error: 'ERR the server is gone' }) : tell(200, answers)
  }
}

// One connection to the server, for all requests.
class Pipe {
  static async open(port) {
    const socket = net.connect(port, '127.0.0.1')
    await once(socket, 'connect')
    return new Pipe(socket)
  }

  #rest = Buffer.alloc(0)
  #waiting = []

  constructor(socket) {
    this.socket = socket
    socket.on('data', (data) => this.#read(data))
    socket.on('error', () => {})
    socket.on('close', () => this.#waiting.splice(0).forEach(({ reject }) => reject(new Error('gone'))))
  }

  end() {
    this.socket.destroy()
  }

  send(words, encode) {
    this.socket.write(`*${words.length}\r\n${words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`).join('')}`)
    return new Promise((resolve, reject) => this.#waiting.push({ encode, resolve, reject }))
  }

  #read(data) {
    this.#rest = Buffer.concat([this.#rest, data])
    while (this.#waiting.length > 0) {
      const read = answerAt(this.#rest, 0, this.#waiting[0].encode)
      if (read === undefined) return
      this.#rest = this.#rest.subarray(read.end)
      this.#waiting.shift().resolve(read.error === undefined ? { result: read.value } : { error: read.error })
    }
  }
}

// The answer of Redis that begins there, as JSON has it; undefined if it is not whole.
function answerAt(bytes, start, encode) {
  const line = bytes.indexOf('\r\n', start)
  if (line < 0) return undefined
  const text = bytes.toString('utf8', start + 1, line)
  const end = line + 2
  switch (String.fromCharCode(bytes[start])) {
    case '+':
      return { value: text === 'OK' ? text : Buffer.from(text).toString(encode), end }
    case '-':
      return { error: text, end }
    case ':':
      return { value: Number(text), end }
    case '$': {
      const size = Number(text)
      if (size < 0) return { value: null, end }
      if (bytes.length < end + size + 2) return undefined
      return { value: bytes.toString(encode, end, end + size), end: end + size + 2 }
    }
    default: {
      if (Number(text) < 0) return { value: null, end }
      const value = []
      let at = end
      for (let count = Number(text); count > 0; count -= 1) {
        const item = answerAt(bytes, at, encode)
        if (item === undefined) return undefined
        value.push(item.value)
        at = item.end
      }
      return { value, end: at }
    }
  }
}

module.exports = { Gateway, TOKEN }
