'use strict'
// A Redis-compatible server of a test's own, and a plain connection to look at it from outside.

const { spawn } = require('node:child_process')
const { mkdtempSync, rmSync, writeFileSync } = require('node:fs')
const { once } = require('node:events')
const net = require('node:net')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { setTimeout: sleep } = require('node:timers/promises')

const START_LIMIT = 60_000

function program() {
  if (process.env.REDLATCH_SERVER_BIN) return process.env.REDLATCH_SERVER_BIN
  throw new Error('REDLATCH_SERVER_BIN names no server: scripts/env.sh sets it')
}

async function freePort() {
  const listener = net.createServer().listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const { port } = listener.address()
  listener.close()
  await once(listener, 'close')
  return port
}

class Server {
  // `config`: lines of a file, for a Sentinel.
  static async start({ port, args = [], config } = {}) {
    if (process.env.REDLATCH_LENDER) return LentServer.start(args)
    for (let attempt = 0; attempt < 20; attempt += 1) {
      const server = new Server(port ?? (await freePort()), args, config)
      if (await server.answers()) return server
    }
    throw new Error(`${program()} does not start; see REDLATCH_SERVER_BIN`)
  }

  constructor(port, args, config) {
    this.port = port
    this.url = `redis://127.0.0.1:${port}`
    this.folder = mkdtempSync(join(tmpdir(), 'redlatch-node-'))
    this.socket = join(this.folder, 'socket')
    const fixed = ['--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--dir', this.folder]
    const where = ['--port', `${port}`, '--unixsocket', this.socket]
    let words = [...where, ...fixed, ...args]
    if (config !== undefined) {
      const file = join(this.folder, 'sentinel.conf')
      writeFileSync(file, [`port ${port}`, `unixsocket ${this.socket}`, 'bind 127.0.0.1', `dir ${this.folder}`, ...config].join('\n'))
      words = [file, '--sentinel']
    }
    this.child = spawn(program(), words, { stdio: 'ignore' })
    this.ended = once(this.child, 'exit')
  }

  // False if it ended: somebody else may have taken the port. It is asked on its Unix socket, because another server may
  // answer at the port; a server opens its Unix socket only after it got its port.
  async answers() {
    const before = Date.now()
    while (this.child.exitCode === null && Date.now() - before < START_LIMIT) {
      try {
        const connection = await Connection.open(this.socket)
        await connection.send('PING').catch((error) => error) // NOAUTH is an answer too
        connection.end()
        return true
      } catch {
        await sleep(5)
      }
    }
    return false
  }

  // Keeps its connections and answers nothing any more.
  hang() {
    this.child.kill('SIGSTOP')
  }

  async stop() {
    this.child.kill('SIGKILL')
    await this.ended
    rmSync(this.folder, { recursive: true, force: true })
  }

  async [Symbol.asyncDispose]() {
    await this.stop()
  }
}

// Under Wine no program of Linux can be started: scripts/test-platforms lends a server for as long as a connection lives.
class LentServer {
  static async start(args) {
    const socket = net.connect(Number(process.env.REDLATCH_LENDER), '127.0.0.1')
    socket.write(`${JSON.stringify(args)}\n`)
    const [port] = await Promise.race([once(socket, 'data'), once(socket, 'end')])
    if (port === undefined) throw new Error('no server was lent')
    return new LentServer(socket, Number(port))
  }

  constructor(socket, port) {
    this.socket = socket
    this.port = port
    this.url = `redis://127.0.0.1:${port}`
    this.folder = mkdtempSync(join(tmpdir(), 'redlatch-node-'))
  }

  async stop() {
    const gone = once(this.socket, 'close')
    this.socket.resume().end()
    await gone
    rmSync(this.folder, { recursive: true, force: true })
  }

  async [Symbol.asyncDispose]() {
    await this.stop()
  }
}

// The error of an answer whose connection ends.
const GONE = 'connection closed'

// Just enough of the protocol to send commands and read answers.
class Connection {
  // `place`: a port on 127.0.0.1, or the path of a Unix socket. `decode` makes a value of the bytes of a string.
  static async open(place, decode = (bytes) => bytes.toString('utf8')) {
    const socket = typeof place === 'number' ? net.connect(place, '127.0.0.1') : net.connect(place)
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

module.exports = { Connection, GONE, Server, Silent, freePort }
