// The same managers for `import`: one instance, whichever way it is loaded.
import webLocks from './web-locks.js'

export const { locks, locksOf, LockManager, Lock } = webLocks
