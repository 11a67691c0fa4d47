import { EventEmitter } from 'node:events'

/** A time: milliseconds, or a text with a unit, such as `'250ms'`, `'30s'`, `'5m'`, `'1h'`. */
export type Time = number | `${number}${'ms' | 's' | 'm' | 'h'}`

/** Which wire protocol a lock speaks; docs/options.md tells what each is. */
export type Kind =
  | 'reentrant'
  | 'simple'
  | 'redis-py'
  | 'redlock'
  | 'redsync'
  | 'redis-semaphore'
  | 'article'
  | 'adaptive'
  | 'read'
  | 'write'
  | 'semaphore'
  | 'fair'

/** How releases are published in a cluster, and listened to; docs/cluster.md tells when to choose which. */
export type ClusterPubsub = 'auto' | 'sharded' | 'classic' | 'both'

/** Options of a lock; a client takes them as defaults for its locks. `null` means the default. */
export interface LockDefaults {
  /** The wire protocol: that of Redisson's lock, of the simple lock, or of a program that has one. Default: reentrant. */
  kind?: Kind | null
  /**
   * Whether a caller that holds the lock enters once more, instead of waiting for itself. Default: true for the kinds
   * reentrant, fair, adaptive, read and write, with a key that the caller names; else false. The option `context` counts as a key.
   */
  reentrant?: boolean | null
  /** A fixed lease: the lock ends by itself after this time and is never renewed. Default: the watchdog renews. */
  lease?: Time | null
  /** The lease that the watchdog renews, every third of it, for as long as the lock is held. Default: 30 s. */
  watchdogLease?: Time | null
  /**
   * Draw a fencing token with every first acquisition: a number that only grows, also together with Redisson's
   * `RFencedLock`. Its counter stays in Redis for ever. Default: false.
   */
  fencing?: boolean | null
  /**
   * Draw fencing tokens from a counter that expires 25 hours after its last use, unless it has no expiry already. Not for
   * names that Java locks with `RFencedLock`: its tokens would begin at 1 again. Implies `fencing`. Default: false.
   */
  fencingExpires?: boolean | null
  /** The longest time a hold may last, renewed or not. Default: none. */
  maxHold?: Time | null
  /** How many replicas must acknowledge an acquisition (WAIT); with fewer it is rolled back and fails. Default: 0. */
  replicas?: number | null
  /**
   * The lock outlives the client and the program: only a release or its lease ends it. For a job once an hour, say.
   * Default: false.
   */
  linger?: boolean | null
  /**
   * Read-write lock: how long new readers let a waiting writer go first, in all clients that have this option. 0: not at all.
   * Default: 0 ms.
   */
  writerPreference?: Time | null
}

/** Which protocol a client speaks with its server. */
export type Protocol = 'auto' | 'resp2' | 'resp3'

/** Where the server is, if not said by a URL. `null` means that it is not given. */
export interface Place {
  /** The host name or IP address of the server. */
  host?: string | null
  /** Its port. Default: 6379. */
  port?: number | null
  /** The path of a Unix socket, in place of a host. */
  path?: string | null
  /** The number of the database. Default: 0. */
  db?: number | null
  /** Whether the connection is encrypted; certificates are given by `tlsCa`, `tlsCert` and `tlsKey`. Default: false. */
  tls?: boolean | null
  /** The user; may stand beside a URL that has none, `REDLATCH_URL` included. */
  username?: string | null
  /** The password, as it is, not percent-encoded; may stand beside a URL that has none, `REDLATCH_URL` included. */
  password?: string | null
}

/** The server that a stream is wanted for. */
export interface StreamTarget {
  host?: string
  port?: number
  /** The path of a Unix socket, in place of a host. */
  path?: string
  /** Whether the URL asks for encryption (`rediss://`). The stream has to bring it. */
  tls: boolean
  /** Aborted when the stream is not wanted any more. */
  signal: AbortSignal
}

/** A connection to a server: two Web Streams of bytes, as WebTransport, WebSocketStream and the sockets of Cloudflare have them. */
export interface ServerStream {
  readable: ReadableStream<Uint8Array | ArrayBuffer>
  writable: WritableStream<Uint8Array>
}

/** How connections are made, if not by sockets. */
export interface StreamOptions {
  /** Opens a connection. For the WebAssembly part: a browser has no sockets. Not with Redis over HTTP. Default: the sockets of the runtime. */
  connect?: ((server: StreamTarget) => ServerStream | Promise<ServerStream>) | null
}

/** Options of a client. `null` means the default. */
export interface ClientOptions extends LockDefaults, Place, StreamOptions {
  /** How long one attempt to connect may take, log-in included. Default: 5 s. */
  connectTimeout?: Time | null
  /** The longest time between two tries of a waiter, should every wake-up be lost. Default: 5 s. */
  recheck?: Time | null
  /**
   * How long a server that had been reached may be away before callers that acquire, release or close stop waiting for
   * it. Default: 10 s.
   */
  outage?: Time | null
  /**
   * Quorum: how long a server has no vote after its start, because it may have lost its locks. At least the longest
   * lease of all clients; 0 if the servers lose nothing (`appendfsync always`). Default: 30 s.
   */
  restartDelay?: Time | null
  /**
   * How often in a row a release hands the lock to the next waiter of the same client; then others get a chance.
   * 0: never. Default: 100.
   */
  handoverLimit?: number | null
  /** How long a client may go on handing the lock to its own waiters before others get a chance. Default: 50 ms. */
  handoverTime?: Time | null
  /** How long closing may take to release what is held. Default: 5 s. */
  closeLimit?: Time | null
  /**
   * How long the end of a program that did not close the client may take to release what is held; 0 leaves it to its
   * lease. Default: 1 s.
   */
  exitLimit?: Time | null
  /** Ask the server to tell when the key of a hold changes, so that a loss is known in milliseconds. Default: true. */
  tracking?: boolean | null
  /**
   * A call that is alone is made by the event loop itself, on one more connection, if the server answers quickly. Not
   * with TLS or a cluster. Default: true.
   */
  direct?: boolean | null
  /**
   * How releases are published in a cluster: by shard where nodes can (auto), always by shard (sharded), to all nodes
   * (classic), or both ways (both), for mixed fleets. Default: auto.
   */
  clusterPubsub?: ClusterPubsub | null
  /** The first part of the names of the connections in CLIENT LIST. Client id, language, process id and host follow. Default: `redlatch`. */
  clientName?: string | null
  /** The protocol. With RESP2 a loss is noticed at the next renewal only. Default: auto, RESP3 where the server knows it. */
  protocol?: Protocol | null
  /** After how much silence TCP asks whether the server is still there. Default: 5 s. */
  keepAlive?: Time | null
  /** The authorities that may have signed the server's certificate: PEM, or a path. Default: those of the system. */
  tlsCa?: string | null
  /** The client's certificate, for servers that ask for one: PEM, or a path. */
  tlsCert?: string | null
  /** The private key of `tlsCert`: PEM, or a path. */
  tlsKey?: string | null
  /** How many events are kept until the event loop takes them; 0 keeps none. Default: 1024. */
  events?: number | null
  /** Tell events about single locks as well: acquired, waiting, released. Default: false. */
  debugEvents?: boolean | null
}

/** Options of a lock. */
export interface LockOptions extends LockDefaults {
  /**
   * Inside `using(fn)`, what `fn` calls enters the lock again instead of waiting for itself (by AsyncLocalStorage).
   * Two calls that run inside at the same time, as with `Promise.all`, are one owner and do not exclude each other. A
   * timer or a queue that was set up inside is an owner of its own when every `using` around it has ended.
   */
  context?: boolean
}

/** How one acquisition is made. */
export interface TryOptions {
  /** A fixed lease for this acquisition, in place of the lock's lease or its watchdog. */
  lease?: Time | null
  /** The value that a simple lock's key gets. Give each attempt a token of its own, in every process. A program that knows it can release and extend the lock. Default: a fresh one. */
  token?: string | null
  /** Ends the waiting; the call is rejected with the signal's reason. Has no effect on a lock that is held. */
  signal?: AbortSignal
  /** Acquisitions with the same number are one owner: the later one enters again. */
  key?: number | bigint
  /** Enter again as the owner of this hold. */
  hold?: Hold
  /** See {@link LockOptions.context}. */
  context?: boolean
}

/** How one acquisition is made, with a limit to the waiting. */
export interface AcquireOptions extends TryOptions {
  /** How long to wait for the lock; 0 tries once. Default: for ever. */
  wait?: Time | null
}

/** Options of a semaphore. */
export interface SemaphoreOptions extends Omit<LockDefaults, 'kind' | 'reentrant' | 'fencing' | 'fencingExpires' | 'writerPreference'> {
  /** How many permits a semaphore gets, if it has none yet. Default: 0: others set it. */
  limit?: number | null
  /**
   * Serve the callers of a semaphore that have this option in their order, over all programs. Redisson and callers
   * without it can overtake them. Default: false.
   */
  fair?: boolean | null
}

/** How permits are tried for. */
export interface TryPermitsOptions extends Pick<TryOptions, 'lease' | 'signal'> {
  /** How many permits of a semaphore to take at once. Default: 1. */
  permits?: number | null
}

/** How permits are taken, with a limit to the waiting. */
export interface PermitsOptions extends TryPermitsOptions, Pick<AcquireOptions, 'wait'> {}

/** How long a call waits for permits of a plain semaphore, or for a latch. */
export interface WaitOptions extends Pick<AcquireOptions, 'wait'> {
  /** Ends the waiting; the call is rejected with the signal's reason, and permits that it has won meanwhile are given back. */
  signal?: AbortSignal
}

/** How many permits a semaphore has. They may change at any time. */
export interface Permits {
  /** The permits that nobody has. Negative when the semaphore was given fewer permits than are taken. */
  available: number
  /** All of them, taken ones included; 0 if nobody has set the number yet. */
  limit: number
}

/** How a lock is entered again. */
export type ReenterOptions = Pick<AcquireOptions, 'wait' | 'lease' | 'signal'>

/** The holder of a lock, as Redis sees it. */
export interface Holder {
  /** `<uuid>:<number>` */
  owner: string
  /** Its hold count. */
  count: number
  /** How long the lock lives without a renewal, in milliseconds; null if the key has no expiry. */
  remaining: number | null
  /**
   * Null for a holder that is not of redlatch (Redisson names no process), one with a token of its own, one that is no
   * longer connected, and where the server refuses `CLIENT LIST`.
   */
  process: HolderProcess | null
}

/** The process of a holder, as the names of its connections tell it. */
export interface HolderProcess {
  /** The option `clientName` of its client. */
  clientName: string
  /** `node`, `python`, `rust`, `c` or `cli` */
  language: string
  /** The process id. Containers number their processes separately. */
  pid: number
  /** The name of the machine or container; empty if it cannot be told. */
  host: string
}

/** Something that happened, for a log. */
export interface LockEvent {
  kind: string
  level: 'debug' | 'info' | 'warn'
  lockName?: string
  text: string
}

/** The counters of a client since it was opened. */
export interface Stats {
  acquired: number
  released: number
  lost: number
  timeouts: number
  cancelled: number
  renewed: number
  calls: number
  unanswered: number
  wakeups: number
  connects: number
  eventsDropped: number
  holds: number
  waiting: number
}

/**
 * Listeners run in the event loop. While one blocks it, answers wait, and locks are renewed all the same; what one throws
 * is an uncaught exception.
 */
export interface ClientEvents {
  /** A hold was lost; once for each. */
  lost: [error: LockLostError]
  /** An event, for a log. Also published on the diagnostics channel `redlatch`. */
  event: [event: LockEvent]
  /** A server is reached, for the first time or again. */
  connect: []
  /**
   * A server cannot be reached; the client goes on trying by itself. Once for each outage, and only if somebody listens: calls
   * have errors of their own.
   *
   * The client makes the error from an event. An event has only a text, so the class is always `UnavailableError`, without a
   * `cause`. This also applies where the server refuses the password. The message says why; a call rejects with the class and
   * the cause, such as AuthError.
   */
  error: [error: LockError]
  /** The client is closed. */
  end: []
}

/**
 * A connection to Redis under one identity. Its thread and its connections start with the first call.
 *
 * A call that waits keeps the process alive, a lock that is held does not. A lock that is still held is released when the
 * process ends, within the option `exitLimit`.
 */
export class Client extends EventEmitter<ClientEvents> implements AsyncDisposable {
  /**
   * Opens a client when it is first used. The URL is `REDLATCH_URL` of the environment if none is given, and no `host` or
   * `path`. Sentinels and clusters have URLs only. A URL that begins with `https://` or `http://` is for Redis over HTTP, with the
   * token as `password`; the WebAssembly part speaks that.
   */
  constructor(url?: string, options?: ClientOptions)
  constructor(options: ClientOptions)
  /** Opens a client and waits until the server is reached. */
  static connect<C extends Client>(
    this: new (url?: string, options?: ClientOptions) => C,
    url?: string,
    options?: ClientOptions,
  ): Promise<C>
  static connect<C extends Client>(this: new (options: ClientOptions) => C, options: ClientOptions): Promise<C>
  /** Names a lock. Sends nothing. */
  lock(name: string, options?: LockOptions): Lock
  /**
   * Names a read-write lock: many readers, or one writer. The options are for both sides; `fencing` is for the writer, and
   * `kind` is not taken. Sends nothing.
   */
  rwLock(name: string, options?: Omit<LockOptions, 'kind'>): RwLock
  /**
   * Names several locks as one: all of them, or none. Names and locks of this client may be mixed: locks, sides of read-write
   * locks, semaphores, multi locks. The options are for locks that are given by their names; `context` is for the whole. Sends
   * nothing.
   */
  multiLock(locks: readonly (string | Lock | Semaphore)[], options?: LockOptions): MultiLock
  /**
   * Names a semaphore: so many owners at a time as it has permits. The number alone stands for `{ limit }`. `kind`,
   * `reentrant`, `context` and fencing are not taken. Sends nothing.
   */
  semaphore(name: string, options?: number | SemaphoreOptions): Semaphore
  /**
   * Names a plain semaphore, whose permits have no lease: those of a program that dies never come back. `semaphore` has
   * leases; take this one where other programs use Redisson's `RSemaphore`. Sends nothing.
   */
  plainSemaphore(name: string): PlainSemaphore
  /** Names a count-down latch. Sends nothing. */
  latch(name: string): CountDownLatch
  /** The client's counters so far. */
  stats(): Stats
  /**
   * Releases what is held, ends what waits, and stops, within `limit` or the option `closeLimit`; gives the names of
   * the locks that could not be released (they end with their leases; with a limit of 0 all do). Permits of plain semaphores
   * stay taken. Closing twice is no error.
   */
  close(limit?: Time): Promise<string[]>
  [Symbol.asyncDispose](): Promise<void>
}

/** A lock: a name on a client, with options. Every acquisition is an owner of its own. */
export class Lock {
  protected constructor()
  /** The name as it stands in Redis: some kinds put a word before the name that was given. */
  readonly name: string
  /** Waits for the lock and holds it. */
  acquire(options?: AcquireOptions): Promise<Hold>
  /** Holds the lock if it is free; null if somebody else holds it. */
  tryAcquire(options?: TryOptions): Promise<Hold | null>
  /**
   * Holds the lock while `fn` runs, and gives what it gives. Rejects with LockLostError if the lock was lost
   * meanwhile; if `fn` threw, with its error, which then has the LockLostError as its `cause`.
   */
  using<T>(fn: (hold: Hold) => T | PromiseLike<T>): Promise<T>
  using<T>(options: AcquireOptions | undefined, fn: (hold: Hold) => T | PromiseLike<T>): Promise<T>
  /** Whether anybody holds the lock. */
  isLocked(): Promise<boolean>
  /** The holder of the lock; of a read lock any of them. */
  holder(): Promise<Holder | null>
  /** All holders of the lock: of a read lock there may be several. */
  holders(): Promise<Holder[]>
  /**
   * The queue of a fair lock, in the order in which its waiters are served, those of other programs included: the length
   * is that of the queue, the index a position. `count` is 0; `remaining` is how long the place is kept if its waiter does
   * not ask again. Rejects with InvalidArgumentError for a lock of another kind, of which Redis keeps no queue.
   */
  waiters(): Promise<Holder[]>
  /**
   * Takes over the lock if `token` is its value, in whatever process it was acquired. Simple kinds only. The hold is renewed
   * and released as any other. The token is worth nothing from then on: who acquired with it can neither release nor extend
   * the lock. Rejects with NotOwnerError if the lock is free or has another value.
   */
  adopt(token: string, options?: Pick<TryOptions, 'lease' | 'signal'>): Promise<Hold>
  /**
   * Frees the lock if `token` is its value, in whatever process it was acquired. Simple kinds only. Rejects with
   * NotOwnerError if the lock is free or has another value.
   */
  releaseToken(token: string): Promise<void>
  /** Makes the lock live at least so long from now if `token` is its value; as `releaseToken`. */
  extendToken(token: string, lease: Time): Promise<void>
  /** Deletes the lock whoever holds it; whether there was one. */
  forceRelease(): Promise<boolean>
}

/**
 * Several locks as one. Every caller waits for them in the same order, whatever the order in which it names them, so no two
 * callers wait for each other. While it waits, it keeps those before the one that it waits for. The loss of one of them is the
 * loss of the whole.
 *
 * It has no key of its own: `isLocked`, `holder`, `holders`, `waiters`, `forceRelease` and `reenter` of its Hold reject with
 * InvalidArgumentError. Ask each of `parts`; enter again by acquiring with the same `key`, or by the option `context`.
 */
export class MultiLock extends Lock {
  private constructor()
  /** Its locks, in the order in which it waits for them. */
  readonly parts: readonly (Lock | Semaphore)[]
}

/**
 * Both sides of a read-write lock, the same as the `RReadWriteLock` of Redisson with this name. Each side is a lock.
 *
 * An owner (option `key`, or `context`) that has the write side may take the read side too, and keep it when it releases the
 * write side. The other way round it would wait for itself: WouldDeadlockError.
 */
export class RwLock {
  private constructor()
  /** The name as it stands in Redis. */
  readonly name: string
  /** The side that many may have at a time. */
  readonly read: Lock
  /** The side that one may have, while nobody else has the other. */
  readonly write: Lock
}

/**
 * A semaphore: so many owners at a time as it has permits, the same as the `RPermitExpirableSemaphore` of Redisson with this
 * name. Every acquisition takes permits of its own. They have a lease like a lock, which is renewed while they are held.
 *
 * The first acquisition gives the semaphore its permits, as many as the option `limit` says. A number that is there already
 * stays until `setPermits` changes it. Callers of one client come in their order, whatever number each of them wants.
 */
export class Semaphore {
  private constructor()
  /** The name as it stands in Redis. */
  readonly name: string
  /** Waits for permits and holds them: one, or as many as the option `permits` says. The Hold gives all of them back. */
  acquire(options?: PermitsOptions): Promise<Hold>
  /** Holds permits if so many are free and nobody of this client waits; else null. */
  tryAcquire(options?: TryPermitsOptions): Promise<Hold | null>
  /** Holds permits while `fn` runs, and gives what it gives; as `using` of a lock. */
  using<T>(fn: (hold: Hold) => T | PromiseLike<T>): Promise<T>
  using<T>(options: PermitsOptions | undefined, fn: (hold: Hold) => T | PromiseLike<T>): Promise<T>
  /** How many permits there are, and how many of them are free. */
  permits(): Promise<Permits>
  /**
   * Gives the semaphore so many permits, 0 to 2147483647, whatever it had before. Permits that are held stay held: when there
   * are fewer than that, callers wait until enough are given back.
   */
  setPermits(limit: number): Promise<Permits>
  /** All that have permits; `count` is how many. */
  holders(): Promise<Holder[]>
  /**
   * The queue of a semaphore with the option `fair`, in the order in which its waiters are served, those of other programs
   * included; `count` is how many permits each wants. Rejects with InvalidArgumentError without that option.
   */
  waiters(): Promise<Holder[]>
  /** Takes all permits back, whoever has them; whether anybody had one. Their holders are told that they lost them. */
  forceRelease(): Promise<boolean>
}

/**
 * A plain semaphore: a number of permits, and nothing that says who has them. The same as the `RSemaphore` of Redisson with
 * this name.
 *
 * Permits have no lease. The permits of a program that dies never come back, until somebody adds them anew. A semaphore without a
 * number has no permits: `trySetPermits` gives it some, once. Numbers are whole, up to 2147483647. Callers of one client come in
 * their order, whatever number of permits each of them wants. No command counts twice, also when its answer is lost.
 */
export class PlainSemaphore {
  private constructor()
  /** The name as it stands in Redis. */
  readonly name: string
  /** Takes so many permits at once, by default 1, and waits for them. Rejects with LockTimeoutError when `wait` is over. */
  acquire(permits?: number, options?: WaitOptions): Promise<PlainPermit>
  /** Takes so many permits at once if they are free and nobody of this client waits; else null. */
  tryAcquire(permits?: number): Promise<PlainPermit | null>
  /**
   * Takes permits, by default 1, gives them back when `fn` has ended, and gives what it gives. Rejects with the error of `fn`, if
   * it threw.
   */
  using<T>(fn: (permit: PlainPermit) => T | PromiseLike<T>): Promise<T>
  using<T>(permits: number, fn: (permit: PlainPermit) => T | PromiseLike<T>): Promise<T>
  using<T>(permits: number | undefined, options: WaitOptions | undefined, fn: (permit: PlainPermit) => T | PromiseLike<T>): Promise<T>
  /**
   * Gives so many permits back, by default 1, whoever took them. Nothing stops a caller that gives back more than were taken:
   * the semaphore then has more permits than before. Rejects with UnavailableError if the server did not confirm: the
   * permits are given back as soon as it answers, so do not release them again.
   */
  release(permits?: number): Promise<void>
  /** Gives the semaphore so many permits if it has no number yet; whether it did. */
  trySetPermits(permits: number): Promise<boolean>
  /** Adds permits, or takes some away if the number is negative, without waiting for them; the new number, which may be below 0. */
  addPermits(permits: number): Promise<number>
  /** Takes all permits that there are; how many. A number below 0 becomes 0, and is what this gives. */
  drain(): Promise<number>
  /** How many permits there are. It may change at any time. */
  available(): Promise<number>
}

/**
 * Permits of a plain semaphore that were taken together. They stay taken until this, or `release` of the semaphore anywhere,
 * gives them back. The garbage collector, `close` of the client and the end of the program give nothing back.
 */
export class PlainPermit implements AsyncDisposable {
  private constructor()
  /** The name of the semaphore. */
  readonly name: string
  /** How many permits. */
  readonly permits: number
  /** Gives the permits back, as `release` of the semaphore. Calling it again gives the same. */
  release(): Promise<void>
  /** Gives the permits back, for `await using`. */
  [Symbol.asyncDispose](): Promise<void>
}

/**
 * A count-down latch: callers wait until a count gets to 0. The same as the `RCountDownLatch` of Redisson with this name.
 *
 * A latch without a count is open. At 0 its key goes away, and it can get a count again. Numbers are whole, from 1 to
 * 2147483647. No call counts twice, also when its answer is lost.
 */
export class CountDownLatch {
  private constructor()
  /** The name as it stands in Redis. */
  readonly name: string
  /** Gives the latch this count if it has none; whether it did. */
  trySetCount(count: number): Promise<boolean>
  /** Counts down, by default by 1; what is left. At 0 the latch is open, and everybody who waits goes on. */
  countDown(by?: number): Promise<number>
  /** The count; 0 when the latch is open. */
  count(): Promise<number>
  /**
   * Waits until the count is 0; at once if it is 0 or the latch has no count. Rejects with LockTimeoutError when `wait` is
   * over.
   */
  wait(options?: WaitOptions): Promise<void>
}

/** The part of a held multi lock that is one of its locks. */
export interface HoldPart {
  /** The name of the lock. */
  name: string
  /** The owner as it is in Redis: `<uuid>:<number>` */
  owner: string
  /** The fencing token, if that lock draws them. */
  fencingToken: bigint | undefined
}

/** A held lock, or held permits of a semaphore. */
export class Hold implements AsyncDisposable {
  private constructor()
  /** The name of the lock. */
  readonly name: string
  /** Whether the lock can be relied on now. Answered here, by a clock that counts suspend. */
  readonly isHeld: boolean
  /** How long the lock can be relied on if nothing more is heard from Redis, in milliseconds; 0 once lost. */
  readonly remaining: number
  /** How many levels the hold has. */
  readonly holdCount: number
  /**
   * The owner as it stands in Redis, to be compared with that of a Holder; callers of one client who passed the lock on to each
   * other have the same. Empty once the hold was released.
   */
  readonly owner: string
  /** The fencing token, if the lock draws them. */
  readonly fencingToken: bigint | undefined
  /** One for each lock of a multi lock, in their order. Empty for any other lock. */
  readonly parts: readonly HoldPart[]
  /**
   * Aborted with a LockLostError when the lock is lost. A Hold that is garbage-collected without release is not renewed
   * any more; its signal is aborted when its lease has ended.
   */
  readonly signal: AbortSignal
  /** Throws LockLostError if the lock cannot be relied on, NotOwnerError if it was released. */
  check(): void
  /** Holds the lock once more, as the same owner. */
  reenter(options?: ReenterOptions): Promise<Hold>
  /** Makes the lock live at least so long from now; never shortens it. */
  extend(lease: Time): Promise<void>
  /**
   * Gives the lock back: true, or false if it had been lost. Calling it again gives the same. Rejects with
   * UnavailableError if the server did not confirm; the lock then ends with its lease at the latest.
   */
  release(): Promise<boolean>
  /** Releases, for `await using`. That it had been lost is no error here: the client's event `lost` tells. */
  [Symbol.asyncDispose](): Promise<void>
}

export type ErrorKind =
  | 'timeout'
  | 'cancelled'
  | 'not_owner'
  | 'lost'
  | 'foreign_kind'
  | 'would_deadlock'
  | 'invalid_argument'
  | 'closed'
  | 'forked'
  | 'unavailable'
  | 'auth'
  | 'denied'
  | 'server'
  | 'not_replicated'
  | 'name_not_clusterable'
  | 'internal'

export type LostReason = 'expired' | 'deleted' | 'stolen' | 'forced' | 'unreachable' | 'closed'

export interface LockErrorOptions extends ErrorOptions {
  lockName?: string
}

/** The root of all errors of this package. */
export class LockError extends Error {
  constructor(message?: string, options?: LockErrorOptions)
  readonly code: `ERR_REDLATCH_${Uppercase<ErrorKind>}`
  readonly kind: ErrorKind
  /** The lock that the error concerns. */
  readonly lockName?: string
  /** Whether the same call can succeed later without changing anything. */
  readonly retryable: boolean
}

/** The lock was not acquired within the wait; nothing stays behind in Redis. */
export class LockTimeoutError extends LockError {}
/** The waiting call was cancelled; whatever it may have acquired is released. */
export class LockCancelledError extends LockError {}
/** The caller does not hold this lock. */
export class NotOwnerError extends LockError {}
/** The lock was held and can no longer be relied on. */
export class LockLostError extends LockError {
  readonly reason: LostReason
}
/** Another kind of lock, or other data, lies at this name; nothing was changed. */
export class ForeignKindError extends LockError {}
/** The caller would wait for itself; nothing was sent to Redis. */
export class WouldDeadlockError extends LockError {}
/** An argument or option is not acceptable; nothing was sent to Redis. It is a `LockError` by `instanceof`, too. */
export class InvalidArgumentError extends TypeError implements LockError {
  constructor(message?: string, options?: LockErrorOptions)
  readonly code: 'ERR_REDLATCH_INVALID_ARGUMENT'
  readonly kind: 'invalid_argument'
  readonly lockName?: string
  readonly retryable: boolean
}
/** The client is closed. */
export class ClosedError extends LockError {}
/** The client belongs to the parent process; open a new client in this one. */
export class ForkedError extends LockError {}
/** The server did not answer in time or cannot be reached. */
export class UnavailableError extends LockError {}
/** User name, password or certificate are refused: the server's or ours. */
export class AuthError extends LockError {}
/** The server's access rules (ACL) do not allow a command this lock needs. */
export class DeniedError extends LockError {}
/** The server answered with an error. */
export class ServerError extends LockError {}
/** Fewer replicas than asked for acknowledged the lock; it was rolled back. */
export class NotReplicatedError extends LockError {}
/** The keys of this lock fall into different slots of a cluster. */
export class NameNotClusterableError extends LockError {}
/** A fault in redlatch itself; please report it. */
export class InternalError extends LockError {}
