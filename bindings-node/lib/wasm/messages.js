'use strict'
// The messages between lib/wasm/thread.js and the thread of lib/wasm/worker.js.

module.exports = {
  // To the thread, in lists: one of these, the number of the call, that of the object, the method and its arguments.
  ASK: 0, // the answer comes in a batch
  CALL: 1, // the reply is the result
  MAKE: 2, // the result becomes an object with the number of the call; the reply tells a refusal
  DROP: 3, // the object with the number of the call is not used any more
  END: 4, // no client is left: the thread ends once it owes nothing
  // From the thread: one of these, and what it brings.
  REPLY: 0,
  BATCH: 1,
  // The number of the Border of the thread among its objects.
  BORDER: 0,
}
