// Requests about a plain semaphore or a latch.

export function ask(client, request, signal) {
  const { lock: name, counter } = request
  if (counter === 'plain-semaphore') return ofSemaphore(client.plainSemaphore(name), request, signal)
  return ofLatch(client.latch(name), request, signal)
}

async function ofSemaphore(semaphore, { op, permits = 1, wait_ms: wait }, signal) {
  switch (op) {
    case 'acquire':
      // Permits have no owner: a request to release gives so many back.
      await semaphore.acquire(permits, { wait, signal })
      return {}
    case 'release':
      await semaphore.release(permits)
      return {}
    case 'set':
      return { value: await semaphore.trySetPermits(permits) }
    case 'add':
      await semaphore.addPermits(permits)
      return {}
    case 'drain':
      return { value: await semaphore.drain() }
    case 'permits':
      return { value: await semaphore.available() }
    default:
      return { status: 'unsupported' }
  }
}

async function ofLatch(latch, { op, number = 1, wait_ms: wait }, signal) {
  switch (op) {
    case 'wait':
      await latch.wait({ wait, signal })
      return {}
    case 'set':
      return { value: await latch.trySetCount(number) }
    case 'down':
      await latch.countDown(number)
      return {}
    case 'count':
      return { value: await latch.count() }
    default:
      return { status: 'unsupported' }
  }
}
