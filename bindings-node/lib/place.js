'use strict'
// Where the server is, said by options as in other clients of Redis instead of by a URL; the core reads URLs only.

const { isIPv6 } = require('#host')
const { InvalidArgumentError } = require('./errors.js')
const { isGiven, shown, text, typeOf } = require('./options.js')

// They take the place of a URL, but for the last two, which may stand beside one.
const PLACE = ['host', 'port', 'path', 'db', 'tls', 'username', 'password']
const LOGIN = ['username', 'password']

const wrong = (name, value, right) => new InvalidArgumentError(`${name} is ${shown(value)}; give it ${right}`)

const hostAndPort = ({ host, port }) => `${isIPv6(host) ? `[${host}]` : host}${port === undefined ? '' : `:${port}`}`

// The URL of what was given, with user name and password of `place` in it; undefined if nothing was.
function urlOf(url, given) {
  const names = PLACE.filter((name) => isGiven(given[name]))
  const place = Object.fromEntries(names.map((name) => [name, given[name]]))
  if (names.length === 0) return url
  const login = LOGIN.map((name) => (names.includes(name) ? encodeURIComponent(text(name, place[name], typeOf)) : ''))
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
    // It is not shown: it may be a URL with a password in it.
    if (!text('path', path).startsWith('/')) throw new InvalidArgumentError('path does not begin with /; give the whole path of the socket')
    return withLogin(`unix://${encodeURI(path).replace(/[?#]/g, encodeURIComponent)}?db=${db}`, login, others[0])
  }
  if (host === undefined) throw new InvalidArgumentError(`${names[0]} is given without a host; give host, or a URL`)
  // It may have a password in it.
  if (/[@/?]/.test(shown(host))) throw new InvalidArgumentError('host looks like a URL; give it as the first argument')
  if (typeof host !== 'string' || !(isIPv6(host) || /^[^\s/?#@,:[\]]+$/.test(host))) throw wrong('host', host, 'a host name or an address')
  if (port !== undefined && !(Number.isInteger(port) && port > 0 && port < 65536)) throw wrong('port', port, 'a number from 1 to 65535')
  if (typeof tls !== 'boolean') throw wrong('tls', tls, 'true or false, and certificates to tlsCa, tlsCert and tlsKey')
  return withLogin(`${tls ? 'rediss' : 'redis'}://${hostAndPort(place)}/${db}`, login, names[0])
}

function withLogin(url, [user, password], name) {
  if (user === '' && password === '') return url
  // The URL of a socket has the login in its query.
  const [socket] = /^(redis\+)?unix:\/\/[^#]*/.exec(url) ?? []
  const [, scheme, authority, rest] = /^([\w+]+:\/\/)([^/?#]*)(.*)$/s.exec(url) ?? []
  const hasLogin = socket ? /[?&](user|pass)=/.test(socket) : authority?.includes('@')
  if (hasLogin) throw new InvalidArgumentError(`${name} is given, and the URL has a login, too; give one of them`)
  const query = [user && `user=${user}`, password && `pass=${password}`].filter(Boolean).join('&')
  if (socket) return `${socket}${socket.includes('?') ? '&' : '?'}${query}`
  if (authority) return `${scheme}${user}:${password}@${authority}${rest}`
  // It is not shown: any part of it may be a secret.
  throw new InvalidArgumentError(`${name} is given, and the URL has no host; write redis://host[:port][/database] or unix:///path`)
}

// Refuses the client of another package (ioredis, redis), as other lock libraries take it.
function refuseClient(value) {
  if (typeof value !== 'object' || value === null || typeof value.duplicate !== 'function') return
  const remedy = 'write new Client({ host, port, password }) or new Client(url)'
  throw new InvalidArgumentError(`the client of another package is given; redlatch has connections of its own, ${remedy}`)
}

module.exports = { PLACE, refuseClient, urlOf }
