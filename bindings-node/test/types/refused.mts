// The compiler must refuse all of this.
import { Client, Hold, Lock, LockTimeoutError, MultiLock } from 'redlatch'
import { LockManager, locks, locksOf } from 'redlatch/web-locks'

const client = new Client('redis://localhost')
// @ts-expect-error unknown option
client.lock('a', { leese: 5 })
// @ts-expect-error no time
client.lock('a', { lease: 'soon' })
// @ts-expect-error only its lock makes a hold
new Hold()
// @ts-expect-error only its client makes a lock
new Lock()
// @ts-expect-error only its client makes a multi lock
new MultiLock()
// @ts-expect-error several names are an array
client.multiLock('a')
// @ts-expect-error a side is a lock, both are not
client.multiLock([client.rwLock('a')])
// @ts-expect-error a try does not wait
void client.lock('a').tryAcquire({ wait: 5 })
// @ts-expect-error no such event
client.on('gone', () => {})
// @ts-expect-error permits have no owner
void client.semaphore('a', 5).acquire({ key: 7 })
// @ts-expect-error a semaphore has its own kind
client.semaphore('a', { kind: 'simple' })
// @ts-expect-error a lock has no permits
void client.lock('a').acquire({ permits: 2 })
// @ts-expect-error only a lost hold has a reason
void new LockTimeoutError('a').reason
// @ts-expect-error no such mode
void locks.request('a', { mode: 'read' }, () => {})
// @ts-expect-error a lock that is not available is null
void locks.request('a', { ifAvailable: true }, (lock) => lock.name)
// @ts-expect-error a callback is needed
void locks.request('a', { mode: 'shared' })
// @ts-expect-error a URL is no client
locksOf('redis://localhost')
// @ts-expect-error only a client makes a manager
new LockManager()
