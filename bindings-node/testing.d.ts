/**
 * A server in memory, in the process of the test: no Redis is needed. It runs the scripts of the locks, so a lock means the same. It
 * is one server without TLS, users and persistence, and not made for production. It needs the native part: the WebAssembly part
 * has none.
 *
 * It keeps no process alive. It ends at the end of its block (`using`), by `close`, or with the program.
 */
export class MemoryServer {
  /** Starts it: it takes connections at once. */
  constructor()
  /** The URL for clients, of any process. */
  readonly url: string
  /** Moves the server's clock ahead (milliseconds, or a text like `'61s'`): leases run out without a wait. */
  advance(by: number | string): void
  /** Deletes the keys of a lock, as an operator or an eviction would: its holder is told. False if nobody holds it. */
  takeAway(name: string): boolean
  /** Deletes all data: every lock is free, and holders are told that theirs is lost. */
  empty(): void
  /** From now on the server answers nothing, as one that hangs. Leases go on running out. */
  pause(): void
  /** The server answers again, also what it was asked meanwhile. */
  resume(): void
  /** Ends every connection; clients may connect again at once. */
  disconnect(): void
  /** Ends the server. */
  close(): void
  [Symbol.dispose](): void
  [Symbol.asyncDispose](): Promise<void>
}
