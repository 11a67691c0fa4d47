'use strict'
// A Redis-compatible server of a test's own, and a plain connection to look at it from outside.

const { spawn } = require('node:child_process')
const { once } = require('node:events')
const net = require('node:net')
const { join } = require('node:path')
const { createInterface } = require('node:readline')

const SCRIPTS = join(__dirname, '../../../scripts')

// `scripts/with-server --serve` starts and ends the servers of this process, and ends with the last of them, or with the process.
let starter
let asked = 0

function begin() {
  const waiting = new Map()
  const { lines, answers } = reach()
  createInterface({ input: answers })
    .on('line', (line) => {
      const { id, is, error } = JSON.parse(line)
      const { resolve, reject } = waiting.get(id)
      waiting.delete(id)
      if (error === undefined) resolve(is)
      else reject(new Error(error))
    })
    .on('close', () => waiting.forEach(({ reject }) => reject(new Error('what starts the servers has ended'))))
  return { lines, waiting, started: 0 }
}

function reach() {
  // Where no program of this system can be started (under Wine, in an emulator), scripts/test-platforms serves at a port.
  if (process.env.REDLATCH_STARTER) {
    const socket = net.connect(Number(process.env.REDLATCH_STARTER), '127.0.0.1')
    return { lines: socket, answers: socket }
  }
  const options = { stdio: ['pipe', 'pipe', 'inherit'] }
  const child =
    process.platform === 'win32'
      ? spawn('python', [join(SCRIPTS, 'lib/server.py'), '--serve'], options)
      : spawn(join(SCRIPTS, 'with-server'), ['--serve'], options)
  return { lines: child.stdin, answers: child.stdout }
}

// Asks what `serve` in scripts/lib/server.py describes.
function ask(line) {
  return new Promise((resolve, reject) => {
    asked += 1
    starter.waiting.set(asked, { resolve, reject })
    starter.lines.write(`${JSON.stringify({ id: asked, ...line })}\n`)
  })
}

// A server, or servers that belong together: `nodes`, `sentinels`.
class Started {
  static async start(topology, args = [], options = {}) {
    starter ??= begin()
    starter.started += 1
    try {
      const started = new this(await ask({ do: topology, args, with: options }))
      started.isPart = false
      return started
    } catch (error) {
      release()
      throw error
    }
  }

  constructor({ nodes = [], sentinels = [], ...fields }) {
    const servers = (told) => told.map((each) => new Server(each))
    Object.assign(this, fields, { nodes: servers(nodes), sentinels: servers(sentinels), isPart: true })
  }

  call(method, ...args) {
    return ask({ of: this.of, do: method, args })
  }

  async stop() {
    await this.call('close')
    if (!this.isPart) release()
  }

  async [Symbol.asyncDispose]() {
    await this.stop()
  }

  // As the starter knows it.
  toJSON() {
    return { of: this.of }
  }
}

function release() {
  starter.started -= 1
  if (starter.started > 0) return
  starter.lines.end()
  starter = undefined
}

class Server extends Started {
  static start({ port = 0, args = [] } = {}) {
    return super.start('single', args, { port })
  }

  // One command on a connection of its own.
  async send(...words) {
    for (;;) {
      try {
        return await this.call('__call__', ...words)
      } catch (error) {
        // Sentinels cut the connections of a server whose role they change.
        if (!/closed the connection|Connection reset/.test(error.message)) throw error
      }
    }
  }

  // Keeps its connections and answers nothing any more.
  async hang() {
    await this.call('signal', 'STOP')
  }
}

// The error of an answer whose connection ends.
const GONE = 'connection closed'

// Just enough of the protocol to send commands and read answers.
class Connection {
  // `decode` makes a value of the bytes of a string.
  static async open(port, decode = (bytes) => bytes.toString('utf8')) {
    const socket = net.connect(port, '127.0.0.1')
    await once(socket, 'connect')
    return new Connection(socket, decode)
  }

  #rest = Buffer.alloc(0)
  #waiting = []
  #decode

  constructor(socket, decode) {
    this.socket = socket
    this.#decode = decode
    socket.on('data', (data) => this.#read(data))
    socket.on('close', () => this.#waiting.splice(0).forEach(({ reject }) => reject(new Error(GONE))))
    socket.on('error', () => {})
  }

  send(...words) {
    const parts = words.map((word) => `$${Buffer.byteLength(`${word}`)}\r\n${word}\r\n`)
    this.socket.write(`*${words.length}\r\n${parts.join('')}`)
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }))
  }

  end() {
    this.socket.destroy()
  }

  #read(data) {
    this.#rest = Buffer.concat([this.#rest, data])
    for (;;) {
      const parsed = parse(this.#rest, 0, this.#decode)
      if (parsed === undefined) return
      this.#rest = this.#rest.subarray(parsed.end)
      const waiting = this.#waiting.shift()
      if (parsed.value instanceof Error) waiting?.reject(parsed.value)
      else waiting?.resolve(parsed.value)
    }
  }
}

function parse(bytes, start, decode) {
  const line = bytes.indexOf('\r\n', start)
  if (line < 0) return undefined
  const text = bytes.toString('utf8', start + 1, line)
  const end = line + 2
  switch (bytes.toString('latin1', start, start + 1)) {
    case '+':
      return { value: text === 'OK' ? text : decode(bytes.subarray(start + 1, line)), end }
    case '-':
      return { value: new Error(text), end }
    case ':':
      return { value: Number(text), end }
    case '$': {
      const size = Number(text)
      if (size < 0) return { value: null, end }
      if (bytes.length < end + size + 2) return undefined
      return { value: decode(bytes.subarray(end, end + size)), end: end + size + 2 }
    }
    default: {
      const value = []
      let at = end
      for (let count = Number(text); count > 0; count -= 1) {
        const item = parse(bytes, at, decode)
        if (item === undefined) return undefined
        value.push(item.value)
        at = item.end
      }
      return { value, end: at }
    }
  }
}

// Takes connections and never answers. `met` counts them, `sockets` are those that are open.
class Silent {
  static async start() {
    const silent = new Silent()
    silent.listener = net.createServer((socket) => {
      silent.sockets.add(socket)
      silent.met += 1
      socket.on('error', () => {}).on('close', () => silent.sockets.delete(socket))
      socket.resume()
    })
    await once(silent.listener.listen(0, '127.0.0.1'), 'listening')
    silent.port = silent.listener.address().port
    return silent
  }

  sockets = new Set()
  met = 0

  stop() {
    this.listener.close()
    for (const socket of this.sockets) socket.destroy()
  }
}

module.exports = { Connection, GONE, Server, Silent, Started }
