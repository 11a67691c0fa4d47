// The smallest program: holds a lock and says so. The server is in REDLATCH_URL.
import { Client } from 'redlatch'

const client = await Client.connect()
await client.lock('hello').using(async (hold) => console.log('held', hold.name))
await client.close()
