// One tab of all browsers edits at a time. A bundler makes page.js of it; the relay is at the address in the query: ?relay=ws://...
import { Client } from 'redlatch'
import { streamBy } from './stream.mjs'

const relay = new URLSearchParams(location.search).get('relay') ?? 'ws://127.0.0.1:8080'
const [button, state] = ['button', 'output'].map((name) => document.querySelector(name))
// The relay knows the server; the host in the URL is only shown.
const client = await Client.connect('redis://relay', { connect: streamBy(relay) })

let hold
button.onclick = async () => {
  button.disabled = true
  try {
    if (hold?.isHeld) {
      await hold.release()
      state.value = 'free'
    } else {
      state.value = 'waiting'
      hold = await client.lock('document:42').acquire()
      hold.signal.onabort = () => (state.value = 'lost')
      state.value = 'mine'
    }
  } catch ({ message }) {
    state.value = message
  } finally {
    button.disabled = false
  }
}
state.value = 'free'
