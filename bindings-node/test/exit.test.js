'use strict'
// A program's locks are released when it ends, however it ends, if any code can run then. The key is looked at when the
// process is gone. Exit codes and signals are what they would be without us.

const assert = require('node:assert/strict')
const { spawn, spawnSync } = require('node:child_process')
const { once } = require('node:events')
const { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { basename, join } = require('node:path')
const { after } = require('node:test')
const { PACKAGE, WINDOWS, Server, freshName, run, runNode, shared, test, until } = require('./support/index.js')

const context = shared()
const folder = mkdtempSync(join(tmpdir(), 'redlatch-exit-'))
after(() => rmSync(folder, { recursive: true }))

// For a signal that ends the program: of the systems only Linux releases the locks then, and `scripts/test portable` is without.
const signalTest = process.env.REDLATCH_PORTABLE || process.platform !== 'linux' ? () => {} : test
const posixTest = (name, body) => test(name, { skip: WINDOWS && 'there are no signals' }, body)

// Runs a program that holds a lock by each of two clients, then does `action`, in which `wait()` waits for another lock.
// Tells how it ended, and how many of its keys there are then.
// The server has longer than by default, because the machine may be busy.
async function endOf(action, { options = '{ exitLimit: 10_000 }', url = context.url, ...rest } = {}) {
  const name = freshName()
  const ended = await run(
    url,
    `(async () => {
      const name = ${JSON.stringify(name)}
      const [client, other] = [await Client.connect(${options}), await Client.connect(${options})]
      globalThis.holds = [await client.lock(name).acquire(), await other.lock(name + ':other').acquire()]
      holds[0].signal.addEventListener('abort', () => console.log('told'))
      const wait = () => void client.lock(name + ':other').acquire()
      ${action}
    })()`,
    rest,
  )
  const keys = url === context.url ? await context.redis.send('EXISTS', name, `${name}:other`) : undefined
  return { ...ended, name, keys }
}

const code = (code) => ({ code, signal: null, keys: 0 })
const killed = (signal) => ({ code: null, signal, keys: 0 })

for (const [how, action, expected] of [
  ['nothing more to do', 'setTimeout(() => {}, 1)', code(0)],
  ['process.exitCode', 'process.exitCode = 5', code(5)],
  ['process.exit()', 'wait(); wait(); process.exit(3)', code(3)],
  ['an exception', 'wait(); wait(); setImmediate(() => { throw new Error("boom") })', code(1)],
  ['an unhandled rejection', 'wait(); Promise.reject(new Error("boom"))', code(1)],
  ['SIGINT', 'wait(); wait(); process.kill(process.pid, "SIGINT")', killed('SIGINT')],
  ['SIGTERM', 'wait(); wait(); process.kill(process.pid, "SIGTERM")', killed('SIGTERM')],
  ['SIGHUP', 'process.kill(process.pid, "SIGHUP")', killed('SIGHUP')],
  ['SIGUSR2', 'process.kill(process.pid, "SIGUSR2")', killed('SIGUSR2')],
  // Deno takes the other signals with a handler of its own then.
  ['SIGTERM beside a handler of another signal', 'process.on("SIGWINCH", () => {}).kill(process.pid)', killed('SIGTERM')],
  ['a handler that exits', 'wait(); process.on("SIGTERM", () => process.exit(7)).kill(process.pid)', code(7)],
  [
    'a signal whose handler was removed',
    'const ours = () => {}; process.on("SIGINT", ours).off("SIGINT", ours).kill(process.pid, "SIGINT")',
    killed('SIGINT'),
  ],
  [
    'a handler that removes itself and raises the signal again',
    'wait(); process.once("SIGTERM", (signal) => process.kill(process.pid, signal)).kill(process.pid)',
    killed('SIGTERM'),
  ],
]) {
  const its = expected.signal !== null ? signalTest : action.includes('SIG') ? posixTest : test
  its(`${how} releases what is held`, async () => {
    const { code, signal, keys, stderr } = await endOf(action)
    assert.deepEqual({ code, signal, keys }, expected, stderr)
  })
}

signalTest('a signal ends a program whose event loop is blocked, and releases what it holds', async () => {
  const name = freshName()
  const script = `const { Client } = require(${JSON.stringify(PACKAGE)})
    Client.connect().then(async (client) => {
      globalThis.hold = await client.lock(${JSON.stringify(name)}).acquire()
      require('node:fs').writeSync(1, 'held')
      for (;;);
    })`
  const env = { ...process.env, REDLATCH_URL: context.url }
  const child = spawn(process.execPath, ['-e', script], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  await once(child.stdout, 'data')
  child.kill('SIGTERM')
  assert.deepEqual(await once(child, 'exit'), [null, 'SIGTERM'])
  assert.equal(await context.redis.send('EXISTS', name), 0)
})

// The kernel gives a signal to another thread while the main one blocks it, as it does for the moment in which it makes a thread.
signalTest('a signal that comes to another thread ends a program, and releases what it holds', async () => {
  const name = freshName()
  const script = `const { Client } = require(${JSON.stringify(PACKAGE)})
    setInterval(() => {}, 1000)
    Client.connect().then(async (client) => {
      globalThis.hold = await client.lock(${JSON.stringify(name)}).acquire()
      require('node:fs').writeSync(1, 'held')
    })`
  const env = { ...process.env, REDLATCH_URL: context.url }
  const child = spawn(process.execPath, ['-e', script], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  await once(child.stdout, 'data')
  const takes = (thread) => {
    const status = readFileSync(`/proc/${child.pid}/task/${thread}/status`, 'latin1')
    return (BigInt(`0x${/^SigBlk:\t(.*)$/m.exec(status)[1]}`) & (1n << 14n)) === 0n
  }
  const threads = readdirSync(`/proc/${child.pid}/task`).filter((thread) => Number(thread) !== child.pid && takes(thread))
  const tgkill = { x64: 234, arm64: 131 }[process.arch]
  const send = `import ctypes; assert ctypes.CDLL(None).syscall(${tgkill}, ${child.pid}, ${threads[0]}, 15) == 0`
  assert.equal(spawnSync('python3', ['-c', send]).status, 0)
  assert.deepEqual(await once(child, 'exit'), [null, 'SIGTERM'])
  assert.equal(await context.redis.send('EXISTS', name), 0)
})

// A PID namespace of its own, as a container has: the program is process 1 there, which the kernel spares the signals that it does
// not handle. Who is not root gets one with a user namespace, if the system allows that.
const asInit = ['--pid', '--fork', '--mount-proc', ...(process.getuid?.() === 0 ? [] : ['--user', '--map-root-user'])]
const noNamespace = process.platform === 'linux' && spawnSync('unshare', [...asInit, 'true']).status !== 0
const initTest = (name, body) => signalTest(name, { skip: noNamespace && 'unshare gives no PID namespace here' }, body)

for (const [name, number] of Object.entries({ SIGTERM: 15, SIGINT: 2, SIGHUP: 1, SIGUSR2: 12 })) {
  initTest(`${name} ends process 1 of a container, and releases what it holds`, async () => {
    const lockName = freshName()
    const script = `const { Client } = require(${JSON.stringify(PACKAGE)})
      const { Worker } = require('node:worker_threads')
      new Worker('setInterval(() => {}, 1000)', { eval: true })
      setInterval(() => {}, 1000)
      Client.connect().then(async (client) => {
        globalThis.hold = await client.lock(${JSON.stringify(lockName)}).acquire()
        client.lock(${JSON.stringify(lockName)}).acquire()
        require('node:fs').writeSync(1, String(process.pid))
      })`
    const env = { ...process.env, REDLATCH_URL: context.url }
    const args = [...asInit, process.execPath, '-e', script]
    const child = spawn('unshare', args, { env, stdio: ['ignore', 'pipe', 'inherit'] })
    const [pid] = await once(child.stdout, 'data')
    assert.equal(String(pid), '1')
    const init = Number(readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'latin1'))
    process.kill(init, name)
    assert.deepEqual(await once(child, 'exit'), [128 + number, null])
    assert.equal(await context.redis.send('EXISTS', lockName), 0)
  })
}

for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) {
  signalTest(`two copies of the package in one process release what they hold at ${signal}`, async () => {
    const copy = join(folder, `copy-${signal}`)
    const left = ['node_modules', 'test', 'src', 'target', 'dist']
    cpSync(PACKAGE, copy, { recursive: true, filter: (from) => !left.includes(basename(from)) })
    const { keys, ...ended } = await endOf(`
      const copy = require(${JSON.stringify(copy)})
      if (copy.Client === Client) throw new Error('it is no copy')
      const second = await copy.Client.connect()
      globalThis.more = [await second.lock(name + ':copy').acquire()]
      process.kill(process.pid, ${JSON.stringify(signal)})
      setTimeout(() => {}, 60_000)`)
    const more = await context.redis.send('EXISTS', `${ended.name}:copy`)
    assert.deepEqual([ended.signal, keys, more], [signal, 0, 0], ended.stderr)
  })
}

posixTest('a program that handles a signal keeps its locks and lives on', async () => {
  const { code, stdout, keys } = await endOf(`
    process.on('SIGINT', async () => {
      console.log(holds[0].isHeld, await client.lock(name).isLocked())
      process.exit(4)
    })
    process.kill(process.pid, 'SIGINT')
    setTimeout(() => {}, 60_000)`)
  assert.deepEqual([code, stdout, keys], [4, 'true true\n', 0])
})

test('a promise that rejects with the loss of a hold does not change the exit code', async () => {
  const { code, stderr, keys } = await endOf(`
    new Promise((_, reject) => holds[1].signal.addEventListener('abort', () => reject(holds[1].signal.reason)))
    setTimeout(() => {}, 1)`)
  assert.deepEqual([code, stderr, keys], [0, '', 0])
})

test('exit listeners still hold the lock', { skip: WINDOWS && 'ours may run before' }, async () => {
  const { code, stdout, keys } = await endOf(`
    process.on('exit', () => console.log(holds.map((hold) => hold.isHeld)))
    process.exit()`)
  assert.deepEqual([code, stdout, keys], [0, '[ true, true ]\n', 0])
})

for (const [how, action] of [
  ['process.exit()', 'process.exit()'],
  ['SIGTERM', 'process.kill(process.pid, "SIGTERM")'],
]) {
  const its = how === 'SIGTERM' ? signalTest : test
  its(`an acquisition that is under way at ${how} leaves nothing behind`, async () => {
    for (let round = 0; round < 10; round += 1) {
      const name = freshName()
      const names = Array.from({ length: 50 }, (_, at) => `${name}:${at}`)
      await run(
        context.url,
        // The server of a busy machine may answer late.
        `Client.connect({ exitLimit: 60_000 }).then((client) => {
          for (const name of ${JSON.stringify(names)}) client.lock(name).acquire()
          setTimeout(() => { ${action} }, ${round % 3})
        })`,
      )
      assert.equal(await context.redis.send('EXISTS', ...names), 0)
    }
  })

  test(`an exitLimit of 0 leaves what is held to its lease at ${how}`, async () => {
    const { stderr, keys } = await endOf(action, { options: '{ exitLimit: 0 }' })
    assert.deepEqual([stderr, keys], ['', 2])
  })

  posixTest(`a server that does not answer delays ${how} for no longer than exitLimit`, async () => {
    const server = await Server.start()
    const { took } = await endOf(`process.kill(${server.pid}, 'SIGSTOP'); ${action}`, {
      url: server.url,
      options: '{ exitLimit: 300 }',
    })
    await server.stop()
    assert.ok(took < 30_000, `${took} ms`)
  })

  its(`worker threads release what they hold at ${how}`, async () => {
    const worker = `
      const { parentPort } = require('node:worker_threads')
      const { Client } = require(${JSON.stringify(PACKAGE)})
      Client.connect().then(async (client) => {
        globalThis.hold = await client.lock(process.env.NAME).acquire()
        parentPort.postMessage('held')
        for (;;);
      })`
    const { stderr, keys, name } = await endOf(`
      const { Worker } = require('node:worker_threads')
      const start = (number) => new Promise((resolve) =>
        new Worker(${JSON.stringify(worker)}, { eval: true, env: { ...process.env, NAME: name + number } }).on('message', resolve))
      await Promise.all([0, 1, 2].map(start))
      ${action}`)
    const left = await context.redis.send('EXISTS', `${name}0`, `${name}1`, `${name}2`)
    assert.deepEqual([stderr, keys, left], ['', 0, 0])
  })

  its(`cluster workers release what they hold at ${how}`, async () => {
    const name = freshName()
    const program = join(folder, 'cluster.js')
    writeFileSync(
      program,
      `const { Client } = require(${JSON.stringify(PACKAGE)})
       const cluster = require('node:cluster')
       if (cluster.isPrimary) {
         cluster.fork()
       } else {
         Client.connect().then(async (client) => {
           globalThis.hold = await client.lock(${JSON.stringify(name)}).acquire()
           ${action}
         })
       }`,
    )
    const ended = await runNode([program], { REDLATCH_URL: context.url })
    assert.deepEqual([ended.code, ended.stderr], [0, ''])
    assert.equal(await context.redis.send('EXISTS', name), 0)
  })
}

test('an end without code leaves what is held to its lease', async () => {
  const { signal, keys } = await endOf('process.kill(process.pid, "SIGKILL")')
  assert.deepEqual([signal, keys], [WINDOWS ? null : 'SIGKILL', 2])
})

test('a client that was closed, or never used, delays no end', async () => {
  const ended = await run(
    context.url,
    `(async () => {
      globalThis.unused = new Client('redis://127.0.0.1:1')
      const client = await Client.connect()
      globalThis.hold = await client.lock('closed').acquire()
      await client.close(0)
    })()`,
  )
  assert.deepEqual([ended.code, ended.stderr], [0, ''])
})

posixTest('nothing of the program runs any more when a signal has freed its locks', async () => {
  const [name, log] = [freshName(), join(folder, 'log')]
  const script = `const { Client } = require(${JSON.stringify(PACKAGE)})
    const { Worker } = require('node:worker_threads')
    const fs = require('node:fs')
    const file = fs.openSync(${JSON.stringify(log)}, 'a')
    const byPool = () => fs.write(file, 'p', byPool)
    const byLoop = () => setImmediate(byLoop, fs.writeSync(file, 'l'))
    Client.connect().then(async (client) => {
      globalThis.hold = await client.lock(${JSON.stringify(name)}).acquire()
      new Worker('for (;;) require("node:fs").writeSync(' + file + ', "w")', { eval: true }).on('online', () => {
        byLoop()
        for (let at = 0; at < 8; at += 1) byPool()
        setTimeout(() => fs.writeSync(1, 'busy'), 50)
      })
    })`
  for (let round = 0; round < 5; round += 1) {
    const env = { ...process.env, REDLATCH_URL: context.url }
    const child = spawn(process.execPath, ['-e', script], { env, stdio: ['ignore', 'pipe', 'inherit'] })
    await once(child.stdout, 'data')
    const gone = once(child, 'exit')
    const waiting = context.client.lock(name).acquire().then((hold) => [hold, statSync(log).size])
    await until(() => context.client.stats().waiting === 1)
    child.kill('SIGTERM')
    const [hold, size] = await waiting
    assert.deepEqual(await gone, [null, 'SIGTERM'])
    assert.equal(statSync(log).size, size)
    await hold.release()
  }
})
