'use strict'
// Where the server is, said by options as in other clients of Redis instead of by a URL; the core reads URLs only.

const { isIPv6 } = require('node:net')
const { InvalidArgumentError } = require('./errors.js')
const { shown, text } = require('./options.js')

// They take the place of a URL, but for the last two, which may stand beside one.
const PLACE = ['host', 'port', 'path', 'db', 'tls', 'username', 'password']
const LOGIN = ['username', 'password']

// Schemes of a socket of the system, whose URLs have the login in the query.
const SOCKET = /^(?:redis\+)?unix:\/\//

const wrong = (name, value, right) => new InvalidArgumentError(`${name} is ${shown(value)}; give it ${right}`)

// It is not shown, whatever its type.
function secret(name, value) {
  if (typeof value === 'string') return text(name, value)
  throw new InvalidArgumentError(`${name} is of type ${typeof value}; give it a string`)
}

// `null` means the default.
const isGiven = (value) => value !== undefined && value !== null

// The URL of what was given, with user name and password of `place` in it; undefined if nothing was.
function urlOf(url, given) {
  const names = PLACE.filter((name) => isGiven(given[name]))
  const place = Object.fromEntries(names.map((name) => [name, given[name]]))
  if (names.length === 0) return url
  const login = LOGIN.map((name) => (names.includes(name) ? encodeURIComponent(secret(name, place[name])) : ''))
  const others = names.filter((name) => !LOGIN.includes(name))
  if (url !== undefined) {
    if (others.length === 0) return withLogin(url, login, names[0])
    throw new InvalidArgumentError(`${others[0]} is given, and a URL is, too; give one of them`)
  }
  const { host, port, path, db = 0, tls = false } = place
  if (!(Number.isInteger(db) && db >= 0)) throw wrong('db', db, 'the number of a database')
  if (path !== undefined) {
    const beside = others.find((name) => !['path', 'db'].includes(name))
    if (beside !== undefined) throw new InvalidArgumentError(`${beside} and path are given; a socket of the system has its path only`)
    return withLogin(`unix://${encodeURI(text('path', path)).replace(/[?#]/g, encodeURIComponent)}?db=${db}`, login, others[0])
  }
  if (host === undefined) throw new InvalidArgumentError(`${names[0]} is given without a host; give host, or a URL`)
  // It may have a password in it.
  if (typeof host === 'string' && /[@/?]/.test(host)) {
    throw new InvalidArgumentError('host looks like a URL; give that as the first argument, or a host name or an address here')
  }
  if (typeof host !== 'string' || !(isIPv6(host) || /^[^\s/?#@,:[\]]+$/.test(host))) throw wrong('host', host, 'a host name or an address')
  if (port !== undefined && !(Number.isInteger(port) && port > 0 && port < 65536)) throw wrong('port', port, 'a number from 1 to 65535')
  if (typeof tls !== 'boolean') throw wrong('tls', tls, 'true or false, and certificates to tlsCa, tlsCert and tlsKey')
  const at = `${isIPv6(host) ? `[${host}]` : host}${port === undefined ? '' : `:${port}`}`
  return withLogin(`${tls ? 'rediss' : 'redis'}://${at}/${db}`, login, names[0])
}

function withLogin(url, [user, password], name) {
  if (user === '' && password === '') return url
  const twice = () => new InvalidArgumentError(`${name} is given, and the URL has a login, too; give one of them`)
  if (SOCKET.test(url)) {
    const [place] = url.split('#')
    if (/[?&](?:user|pass)=/.test(place)) throw twice()
    const query = [...(user ? [`user=${user}`] : []), ...(password ? [`pass=${password}`] : [])].join('&')
    return `${place}${place.includes('?') ? '&' : '?'}${query}`
  }
  const [, scheme, authority, rest] = /^([\w+]+:\/\/)([^/?#]*)(.*)$/s.exec(url) ?? []
  if (authority?.includes('@')) throw twice()
  if (authority) return `${scheme}${user}:${password}@${authority}${rest}`
  // It is not shown: any part of it may be a secret.
  throw new InvalidArgumentError(
    `${name} is given, and the URL has no host to log in at; write redis://host[:port][/database] or unix:///path/to/socket`,
  )
}

// Refuses the client of another package (ioredis, redis), as other lock libraries take it, and says what to write. It shows no
// password.
function refuseClient(value) {
  if (typeof value !== 'object' || value === null || typeof value.duplicate !== 'function') return
  throw new InvalidArgumentError(
    `the client of another package is given; redlatch has connections of its own, write new Client(${lineOf(value)})`,
  )
}

function lineOf({ options, startupNodes }) {
  if (options === undefined) return "'redis+cluster://HOST:PORT'"
  const { sentinels, name, redisOptions } = options
  const nodes = sentinels ?? startupNodes
  if (nodes === undefined) return `{ ${placeLine(options.socket ?? options, options)} }`
  const hosts = nodes.map(hostOf).join(',')
  const url = sentinels ? `redis+sentinel://${hosts}/${name}` : `redis+cluster://${hosts}`
  return `${JSON.stringify(url)}${(options.password ?? redisOptions?.password) ? ', { password }' : ''}`
}

function hostOf(node) {
  if (typeof node !== 'object' || node === null) return /^\d+$/.test(node) ? `localhost:${node}` : authorityOf(`${node}`)
  const { host = 'localhost', port } = node
  const name = isIPv6(host) ? `[${host}]` : authorityOf(`${host}`)
  return port === undefined ? name : `${name}:${port}`
}

// Host and port of a URL. A password that is not percent-encoded may have any of @/?# in it: no part of that is shown.
function authorityOf(url) {
  const [, authority, rest] = /^(?:[\w+]*:?\/\/)?([^/?#]*)(.*)$/s.exec(url)
  const host = authority.replace(/^.*@/s, '')
  return /^(\[[\da-f:.]+\]|[^\s:]+)(:\d+)?$/i.test(host) && !rest.includes('@') ? host : 'HOST'
}

function placeLine({ host = 'localhost', port, path, tls }, { db, database = db, username, password }) {
  const name = isIPv6(host) ? host : authorityOf(`${host}`)
  const at = path ? { path } : { host: name, port, ...(tls && { tls: true }) }
  const words = Object.entries({ ...at, ...(database && { db: database }), ...(username && { username }) })
  const shownWords = words.filter(([, value]) => value !== undefined).map(([word, value]) => `${word}: ${JSON.stringify(value)}`)
  return [...shownWords, ...(password ? ['password'] : [])].join(', ')
}

module.exports = { PLACE, isGiven, refuseClient, urlOf }
