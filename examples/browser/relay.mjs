// Lets pages reach a server: each WebSocket is one connection to it. REDLATCH_URL names the server, ORIGIN the pages that may come, PORT
// where it listens. A page that may come can send every command that its user of Redis may: give that user an ACL (docs/security.md).
// `npm install ws` first.
import { connect } from 'node:net'
import { WebSocketServer, createWebSocketStream } from 'ws'

const { REDLATCH_URL = 'redis://127.0.0.1:6379', ORIGIN = 'http://127.0.0.1:8000', PORT = '8080' } = process.env
const { protocol, hostname, port } = new URL(REDLATCH_URL)
// With TLS the relay would have to speak it: node:tls has a connect as well.
if (protocol !== 'redis:') throw new Error(`no relay to ${protocol}//: REDLATCH_URL begins with redis://`)
const verifyClient = ({ origin }) => origin === ORIGIN

const relay = new WebSocketServer({ host: '127.0.0.1', port: Number(PORT), verifyClient })
relay.on('listening', () => console.log(`ws://127.0.0.1:${relay.address().port}`))
relay.on('connection', (socket) => {
  const [page, server] = [createWebSocketStream(socket), connect(Number(port || 6379), hostname)]
  for (const each of [page, server]) each.on('error', () => {}).on('close', () => [page, server].forEach((other) => other.destroy()))
  page.pipe(server).pipe(page)
})
