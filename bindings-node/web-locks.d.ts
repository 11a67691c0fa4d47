import type { Client } from './index.js'

/** `exclusive`: alone; `shared`: beside others that are shared. */
export type LockMode = 'exclusive' | 'shared'

/** How a lock is requested. */
export interface LockOptions {
  /** Default: `exclusive`. */
  mode?: LockMode
  /** Calls the callback with null if the lock cannot be had at once. */
  ifAvailable?: boolean
  /** Takes the lock from all that hold it, and comes before all of this program that wait for it. */
  steal?: boolean
  /** Ends the waiting: the request rejects with the signal's reason. Has no effect on a lock that is held. */
  signal?: AbortSignal
}

/** A lock that is held. */
export class Lock {
  private constructor()
  readonly name: string
  readonly mode: LockMode
  /**
   * Beyond the specification: aborted with a LockLostError when the lock is lost, stolen too. The work should end then, because
   * somebody else may have the lock.
   */
  readonly signal: AbortSignal
}

/** A lock that somebody holds or waits for. */
export interface LockInfo {
  name: string
  mode: LockMode
  /** Which client: the same in every process that asks. */
  clientId: string
}

export interface LockManagerSnapshot {
  /** First the locks that this client holds, in the order in which they were granted; then the locks of others. */
  held: LockInfo[]
  /** The requests of this client that wait, in their order. The requests of others are not known. */
  pending: LockInfo[]
}

export class LockManager {
  private constructor()
  /**
   * Holds the lock until what `callback` gives is settled, and gives the same. Rejects with an AbortError if the lock is stolen
   * meanwhile, with a LockLostError if it is lost otherwise; the callback goes on.
   */
  request<T>(name: string, callback: (lock: Lock) => T | PromiseLike<T>): Promise<T>
  request<T>(
    name: string,
    options: LockOptions & { ifAvailable?: false },
    callback: (lock: Lock) => T | PromiseLike<T>,
  ): Promise<T>
  request<T>(name: string, options: LockOptions, callback: (lock: Lock | null) => T | PromiseLike<T>): Promise<T>
  /**
   * Tells what is held and what waits, at the names for which this client has requests now. Beyond the specification: and at `names`.
   */
  query(options?: { names?: Iterable<string> }): Promise<LockManagerSnapshot>
}

/** The locks of a client of this program's own, with the environment's `REDLATCH_URL`. It is opened by the first request. */
export const locks: LockManager

/** The locks of this client; always the same object. */
export function locksOf(client: Client): LockManager
