// The package in a browser, for bundlers: the module for WebAssembly is compiled before the rest runs.
import loaded from './lib/browser/module.js'

loaded.compiled = await WebAssembly.compileStreaming(fetch(new URL('./redlatch.wasm', import.meta.url)))
const { default: redlatch } = await import('./index.js')

export const {
  Client,
  Lock,
  MultiLock,
  RwLock,
  Semaphore,
  PlainSemaphore,
  PlainPermit,
  CountDownLatch,
  Hold,
  LockError,
  LockTimeoutError,
  LockCancelledError,
  NotOwnerError,
  LockLostError,
  ForeignKindError,
  WouldDeadlockError,
  InvalidArgumentError,
  ClosedError,
  ForkedError,
  UnavailableError,
  AuthError,
  DeniedError,
  ServerError,
  NotReplicatedError,
  NameNotClusterableError,
  InternalError,
} = redlatch
