'use strict'
// A connection whose other side is HTTP: the REST form of hosted services, which takes commands as JSON. It carries the commands
// of the module and the answers, and decides nothing. A request has what was written since the one before it, in its order.

const { TextDecoder, TextEncoder } = require('#host')
const encoder = new TextEncoder()

// The most bytes of commands in one request, unless one command has more. Services refuse what is too large.
const MOST_SENT = 1 << 18
// The most bytes of an answer. The largest one of a lock lists its holders.
const MOST_HEARD = 1 << 24
// The most characters that are repeated of what a server says about a failure.
const MOST_SAID = 200

const nothing = () => {}

const NO_ANSWER = 'the answer is not that of Redis over HTTP'
const NO_TEXT = '-ERR a command has bytes that are no UTF-8, which JSON does not carry\r\n'
const REFUSED = '-WRONGPASS the token is refused\r\n'
const NO_TOKEN = '-NOAUTH a token is asked for\r\n'

// The commands in RESP that the module has written. It writes whole ones.
function commandsOf(bytes) {
  const commands = []
  const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
  let at = 0
  const number = () => {
    const end = bytes.indexOf(0x0d, at)
    const from = at + 1
    at = end + 2
    return Number(strict.decode(bytes.subarray(from, end)))
  }
  const word = () => {
    const length = number()
    const from = at
    at += length + 2
    return bytes.subarray(from, from + length)
  }
  while (at < bytes.length) {
    const from = at
    const words = Array.from({ length: number() }, word)
    const command = { size: at - from }
    try {
      command.words = words.map((each) => strict.decode(each))
    } catch {
      command.answer = NO_TEXT
    }
    commands.push(command)
  }
  return commands
}

// Writes the answer of JSON as one of RESP. `masked` hides the token in a text.
function writeAnswer(item, pieces, masked) {
  if (typeof item?.error === 'string') pieces.push(`-${masked(item.error).replace(/[\r\n]+/g, ' ') || 'ERR'}\r\n`)
  else if (item?.result !== undefined) writeValue(item.result, pieces)
  else throw new Error(NO_ANSWER)
}

function writeValue(value, pieces) {
  if (value === null) pieces.push('$-1\r\n')
  else if (Number.isSafeInteger(value)) pieces.push(`:${value}\r\n`)
  else if (value === 'OK') pieces.push('+OK\r\n')
  else if (typeof value === 'string') {
    const bytes = Uint8Array.from(binaryOf(value), (each) => each.charCodeAt(0))
    pieces.push(`$${bytes.length}\r\n`, bytes, '\r\n')
  } else if (Array.isArray(value)) {
    pieces.push(`*${value.length}\r\n`)
    for (const each of value) writeValue(each, pieces)
  } else throw new Error(`${NO_ANSWER}: it has a ${typeof value} that Redis does not have`)
}

function binaryOf(text) {
  try {
    return atob(text)
  } catch {
    throw new Error(`${NO_ANSWER}: its strings are not in base64, as the header Upstash-Encoding asks for`)
  }
}

function joined(pieces) {
  const all = pieces.map((piece) => (typeof piece === 'string' ? encoder.encode(piece) : piece))
  const bytes = new Uint8Array(all.reduce((length, piece) => length + piece.length, 0))
  let at = 0
  for (const piece of all) {
    bytes.set(piece, at)
    at += piece.length
  }
  return bytes
}

async function textOf({ body }) {
  if (body === null) return ''
  const decoder = new TextDecoder()
  const reader = body.getReader()
  let text = ''
  let size = 0
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return text + decoder.decode()
    size += value.length
    if (size > MOST_HEARD) {
      reader.cancel().catch(nothing)
      throw new Error(`the answer has more than ${MOST_HEARD >> 20} MiB`)
    }
    text += decoder.decode(value, { stream: true })
  }
}

function parsed(text) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

// The words of a server about a failure, fit for one line. The token is hidden before the words are cut.
function saidIn(text, masked) {
  const said = parsed(text)?.error
  return typeof said === 'string' && said !== '' ? `: ${masked(said).replace(/\p{Cc}+/gu, ' ').slice(0, MOST_SAID)}` : ''
}

// Why a request was not answered. Where several addresses were tried each has an error of its own.
function reasonOf(error) {
  const cause = error?.cause?.errors?.[0] ?? error?.cause ?? error
  return cause?.message || cause?.code || `${cause}`
}

// `soon` calls a function a little later, in no context of the program.
function connectByHttp({ tls, host, port }, heard, soon) {
  const place = `${tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}/pipeline`
  const commands = [] // those that have no answer and are not under way
  let token
  let wake = nothing
  let asking // aborts the request that is under way
  let ended = false
  let known = false // whether a request had its answers

  function destroy() {
    ended = true
    asking?.abort()
    wake()
  }

  // Hides the token, also as URLs and JSON write it.
  function masked(text) {
    if (!token) return text
    const forms = [token, encodeURIComponent(token), JSON.stringify(token).slice(1, -1)]
    return forms.reduce((rest, form) => rest.replaceAll(form, '***'), text)
  }

  function end(error) {
    if (ended) return
    destroy()
    heard.closed(masked(reasonOf(error)))
  }

  // The first of the commands: so many that the request does not become too large.
  function taken() {
    let size = 0
    const count = commands.findIndex((command, at) => (size += command.size) > MOST_SENT && at > 0)
    return commands.splice(0, count < 0 ? commands.length : count)
  }

  async function ask(words) {
    // The error of fetch() would repeat it.
    if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) throw new Error('the token has characters that no header of HTTP takes; check it in the URL')
    const headers = { 'Content-Type': 'application/json', 'Upstash-Encoding': 'base64' }
    if (token !== undefined) headers.Authorization = `Bearer ${token}`
    // Each request has a signal of its own: a signal keeps all that has listened to it.
    asking = new AbortController()
    const { signal } = asking
    // A redirect would carry the token to another place, and a cache would tell of a lock that was.
    const answer = await fetch(place, { method: 'POST', headers, body: JSON.stringify(words), redirect: 'manual', cache: 'no-store', signal })
    if (answer.status === 401) {
      answer.body?.cancel().catch(nothing)
      // The next connection tells the refusal, before it takes calls.
      if (known) throw new Error('the token is refused')
      return words.map(() => (token === undefined ? NO_TOKEN : REFUSED))
    }
    if (answer.type === 'opaqueredirect' || (answer.status >= 300 && answer.status < 400)) {
      answer.body?.cancel().catch(nothing)
      throw new Error('it redirects to another place, which is not followed; write that place into the URL')
    }
    const text = await textOf(answer)
    if (!answer.ok) throw new Error(`it answers with the status ${answer.status}${saidIn(text, masked)}`)
    const items = parsed(text)
    if (!Array.isArray(items) || items.length !== words.length) throw new Error(NO_ANSWER)
    known = true
    return items.map((item) => {
      const pieces = []
      writeAnswer(item, pieces, masked)
      return joined(pieces)
    })
  }

  async function run() {
    heard.opened()
    while (!ended) {
      if (commands.length === 0) {
        await new Promise((resolve) => (wake = resolve))
        continue
      }
      const batch = taken()
      const sent = batch.filter(({ answer }) => answer === undefined)
      const answers = sent.length === 0 ? [] : await ask(sent.map(({ words }) => words))
      if (ended) return
      heard.received(joined(batch.map(({ answer }) => answer ?? answers.shift())))
    }
  }

  function write(bytes) {
    for (const command of commandsOf(bytes)) {
      // Each request has the token. A server that refuses it does so by the status.
      if (command.words?.[0] === 'AUTH') {
        token = command.words.at(-1)
        command.answer = '+OK\r\n'
      }
      commands.push(command)
    }
    wake()
  }

  soon(() => run().catch(end))
  return { write, destroy, ref: nothing, unref: nothing }
}

module.exports = { connectByHttp }
