// A Worker of Cloudflare: requests for the same path take their turns, in all Workers and programs that lock it. The server is in
// the variable or secret REDLATCH_URL.
import { Client, LockTimeoutError } from 'redlatch'

export default {
  async fetch(request) {
    const { pathname } = new URL(request.url)
    // Sockets belong to a request, and so does a client. At the end of the block the lock is released, then the client closes.
    await using client = await Client.connect()
    try {
      await using hold = await client.lock(`worker:${pathname}`).acquire({ wait: 5000 })
      return new Response(await work(hold))
    } catch (error) {
      if (!(error instanceof LockTimeoutError)) throw error
      return new Response('another request is at it, come again\n', { status: 503, headers: { 'retry-after': '1' } })
    }
  },
}

async function work(hold) {
  // The signal ends a call to others once the lock is lost: fetch(url, { signal: hold.signal }).
  hold.signal.throwIfAborted()
  return `held ${hold.name}\n`
}
