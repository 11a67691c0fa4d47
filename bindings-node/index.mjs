// The same classes for `import`: one instance, whichever way it is loaded.
import redlatch from './index.js'

export const {
  Client,
  Lock,
  RwLock,
  Semaphore,
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
