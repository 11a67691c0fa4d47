'use strict'
// The lock libraries for Node.js that the benchmark measures beside ours; arguments and output: see ../../README.md.
// PEERS_NODE names the directory whose node_modules holds them.
const fs = require('fs')
const path = require('path')
const { createRequire } = require('module')
const req = createRequire(path.join(process.env.PEERS_NODE, 'x.js'))

const A = { peer: '', workload: 'W1', url: 'redis://127.0.0.1:6379', seconds: 5, warmup: 0.3, tasks: 64, locks: 10000, limit: 8,
  'lease-ms': 30000, 'cs-us': 1000, 'poll-ms': 0, id: 0, clients: 1, 'ts-file': '', name: 'bench', barrier: false }
for (let i = 2; i < process.argv.length; i++) {
  const k = process.argv[i].replace(/^--/, '')
  if (k === 'barrier') { A.barrier = true; continue }
  const v = process.argv[++i]
  A[k] = typeof A[k] === 'number' ? Number(v) : v
}
const LEASE = A['lease-ms'], POLL = A['poll-ms'], CS = A['cs-us'] / 1000
const now = () => process.hrtime.bigint()
const nowN = () => Number(process.hrtime.bigint())          // fine below 2^53 ns = 104 days of uptime
const sleep = ms => new Promise(r => setTimeout(r, ms))
const cpu = () => { const c = process.cpuUsage(); return (c.user + c.system) / 1e6 }
class NA extends Error {}

// ----------------------------------------------------------------------------- contestants
const peers = {
  // redlock 4.2.0 (npm "latest"): retryCount 10, retryDelay 200, retryJitter 100; no auto-extension
  redlock4 () {
    const Redis = req('ioredis'), Redlock = req('redlock')
    const r = new Redis(A.url, ioOpts())
    const m = new Redlock([r], POLL ? { retryDelay: POLL, retryJitter: 0 } : {})
    return {
      acquire: async n => { try { return await m.lock(n, LEASE) } catch (e) { if (e.name === 'LockError') return null; throw e } },
      release: l => l.unlock(),
      hold: () => { throw new NA('no automatic renewal in 4.x (manual extend() only)') }
    }
  },
  // @sesamecare-oss/redlock 1.4.0, the maintained TypeScript line of redlock 5; using() extends automatically
  redlock5 () {
    const Redis = req('ioredis'), { Redlock } = req('@sesamecare-oss/redlock')
    const r = new Redis(A.url, ioOpts())
    const m = new Redlock([r], POLL ? { retryDelay: POLL, retryJitter: 0 } : {})
    return {
      acquire: async n => { try { return await m.acquire([n], LEASE) } catch (e) { if (e.name === 'ExecutionError') return null; throw e } },
      release: l => l.release(),
      hold: n => new Promise((resolve, reject) => m.using([n], LEASE, () => { resolve(1); return new Promise(() => {}) }).catch(reject))
    }
  },
  // redis-semaphore 5.8.0 Mutex: retryInterval 10 ms, acquireTimeout 10 s, setInterval refresh per lock at 0.8 x lockTimeout
  'redis-semaphore' () {
    const Redis = req('ioredis'), { Mutex } = req('redis-semaphore')
    const r = new Redis(A.url, ioOpts())
    const o = { lockTimeout: LEASE }
    if (POLL) o.retryInterval = POLL
    return {
      acquire: async n => { const m = new Mutex(r, n, o); return await m.tryAcquire() ? m : null },
      release: m => m.release(),
      hold: async n => { const m = new Mutex(r, n, o); await m.acquire(); return m }
    }
  },
  // its Semaphore, of eight permits, with the same times
  semaphore () {
    const Redis = req('ioredis'), { Semaphore } = req('redis-semaphore')
    const r = new Redis(A.url, ioOpts())
    const o = { lockTimeout: LEASE }
    if (POLL) o.retryInterval = POLL
    return {
      acquire: async n => { const s = new Semaphore(r, n, A.limit, o); return await s.tryAcquire() ? s : null },
      release: s => s.release(),
      hold: async n => { const s = new Semaphore(r, n, A.limit, o); await s.acquire(); return s }
    }
  },
  // simple-redis-mutex 3.0.0 on node-redis 6: PUBLISH on release, one channel for all locks; 10 s poll as a safety net
  'simple-redis-mutex': async () => {
    const { createClient } = req('redis'), { lock } = req('simple-redis-mutex')
    const r = createClient({ url: A.url })
    r.on('error', () => {})
    await r.connect()
    const o = { timeout: LEASE }
    if (POLL) o.pollingInterval = POLL
    return {
      acquire: n => lock(r, n, o),
      release: f => f(),
      hold: () => { throw new NA('no automatic renewal (manual refreshTimeout() only)') }
    }
  },
  // node-redis-warlock 1.0.2 optimistic(): fixed wait between attempts; the README's example is 4 attempts, 1000 ms
  warlock () {
    const Redis = req('ioredis')
    const r = new Redis(A.url, ioOpts())
    const w = req('node-redis-warlock')(r)
    return {
      acquire: n => new Promise((resolve, reject) => w.optimistic(n, LEASE, 4, POLL || 1000, (e, unlock) => e ? (e.maxAttempts ? resolve(null) : reject(e)) : resolve(unlock))),
      release: u => new Promise((resolve, reject) => u((e, r) => e ? reject(e) : resolve(r))),
      hold: () => { throw new NA('no automatic renewal (manual touch() only)') }
    }
  }
}
function ioOpts () { return process.env.PEERS_AUTOPIPELINE ? { enableAutoPipelining: true } : {} }

// ----------------------------------------------------------------------------- common
function out (o) { fs.writeSync(1, JSON.stringify(o) + '\n'); process.exit(0) }
function readyGo () {
  if (!A.barrier) return Promise.resolve()
  fs.writeSync(1, 'READY\n')
  return new Promise(resolve => { process.stdin.once('data', () => { process.stdin.pause(); resolve() }); process.stdin.once('end', () => process.exit(0)) })
}
function statusKb (f) { const m = fs.readFileSync('/proc/self/status', 'utf8').match(new RegExp('^' + f + ':\\s+(\\d+)', 'm')); return m ? Number(m[1]) : 0 }
// Which shares of all times are at most as long as each of the quantiles.
const SHARES = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1]
function pct (a, q) { if (!a.length) return 0; const s = Float64Array.from(a).sort(); return s[Math.min(s.length - 1, Math.floor(s.length * q))] / 1e3 }
function jain (v) { const s = v.reduce((a, b) => a + b, 0), q = v.reduce((a, b) => a + b * b, 0); return q ? s * s / (v.length * q) : 0 }

async function main () {
  const P = await peers[A.peer]()
  const pair = async n => { let h = await P.acquire(n); while (!h) h = await P.acquire(n); await P.release(h) }
  const warm = async n => { const end = nowN() + A.warmup * 1e9; while (nowN() < end) await pair(n) }

  if (A.workload === 'W1') {
    const n = A.name + ':1'
    await warm(n); await readyGo()
    const lat = [], c0 = cpu(), t0 = nowN(), end = t0 + A.seconds * 1e9
    let t = t0
    while (t < end) { await pair(n); const u = nowN(); lat.push(u - t); t = u }
    const c = cpu() - c0
    out({ pairs: lat.length, seconds: (t - t0) / 1e9, p50_us: pct(lat, 0.5), p99_us: pct(lat, 0.99), max_us: pct(lat, 1), cpu_s: c, quantiles_us: SHARES.map(q => pct(lat, q)) })
  }
  if (A.workload === 'W2' || A.workload === 'W4') {
    const w4 = A.workload === 'W4', k = A.tasks
    const counts = new Array(k).fill(0), since = new Array(k).fill(0), mx = new Array(k).fill(0), waits = []
    let failed = 0, go, warmed, nwarm = 0, t0 = 0, holder = -1, handoffs = 0
    const started = new Promise(r => { go = r })
    const work = async i => {
      const n = A.name + (w4 ? ':one' : ':' + i)
      await warm(n)
      if (++nwarm === k) warmed()
      await started
      if (!w4) for (;;) { await pair(n); counts[i]++ }
      for (;;) {
        const s = nowN(); since[i] = s
        let h = await P.acquire(n)
        while (!h) { failed++; h = await P.acquire(n) }
        const d = nowN() - s; since[i] = 0
        if (d > mx[i]) mx[i] = d
        waits.push(d); counts[i]++
        if (holder !== i) { holder = i; handoffs++ }
        await P.release(h)
      }
    }
    for (let i = 0; i < k; i++) work(i).catch(e => out({ error: String(e).slice(0, 200) }))
    // A caller that still waits when the others have ended is woken by nobody. It goes on waiting.
    await new Promise(r => { warmed = r; setTimeout(r, (A.warmup + 1) * 1000) })
    await readyGo()
    const c0 = cpu(); t0 = nowN()
    setTimeout(() => {
      const t1 = nowN(), c = cpu() - c0, el = (t1 - t0) / 1e9, total = counts.reduce((a, b) => a + b, 0)
      if (!w4) out({ pairs: total, seconds: el, cpu_s: c, threads: statusKb('Threads') })
      out({ acq: total, seconds: el, max_wait_ms: Math.max(...mx, ...since.map(s => s ? t1 - s : 0)) / 1e6, p99_wait_ms: pct(waits, 0.99) / 1e3, jain: jain(counts), cpu_s: c, failed, handoffs })
    }, A.seconds * 1000)
    go()
    await new Promise(() => {})
  }
  if (A.workload === 'W3') {
    const n = A.name + ':w3', ts = []
    let failed = 0
    await warm(A.name + ':warm' + A.id)
    // So many clients of this process, each with a connection.
    const more = await Promise.all(Array.from({ length: A.clients - 1 }, () => peers[A.peer]()))
    for (const other of more) await other.release(await other.acquire(A.name + ':warm' + A.id))
    await readyGo()
    const c0 = cpu(), t0 = nowN()
    setTimeout(() => {
      const c = cpu() - c0
      fs.writeFileSync(A['ts-file'], ts.map(r => r.join(' ')).join('\n') + (ts.length ? '\n' : ''))
      out({ acq: ts.length, seconds: (nowN() - t0) / 1e9, cpu_s: c, failed, clients: A.clients })
    }, A.seconds * 1000)
    const take = async (client, P) => {
      for (;;) {
        let h = await P.acquire(n)
        while (!h) { failed++; h = await P.acquire(n) }
        const a = now()
        await sleep(CS)
        const b = now()
        await P.release(h)
        ts.push([a, b, now(), client])
      }
    }
    await Promise.all([P, ...more].map((each, client) => take(client, each)))
  }
  if (A.workload === 'W5') {
    await pair(A.name + ':warm')
    if (global.gc) global.gc()
    const rss0 = statusKb('VmRSS'), a0 = nowN(), held = []
    for (let i = 0; i < A.locks; i++) held.push(await P.hold(A.name + ':' + i))
    const acq = (nowN() - a0) / 1e9
    await readyGo()
    const c0 = cpu(), t0 = nowN()
    await sleep(A.seconds * 1000)
    out({ locks: held.length, seconds: (nowN() - t0) / 1e9, cpu_s: cpu() - c0, rss_before_kb: rss0, rss_after_kb: statusKb('VmRSS'), threads: statusKb('Threads'), acquire_s: acq })
  }
}
main().catch(e => { if (e instanceof NA) out({ na: e.message }); console.error(e); out({ error: String(e).slice(0, 200) }) })
