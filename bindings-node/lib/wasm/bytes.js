'use strict'
// Arguments for the module and records from it, as bindings-wasm/README.md describes them.

const { TextDecoder, TextEncoder } = require('#host')
const encoder = new TextEncoder()
const decoder = new TextDecoder()

// The kinds of values of options, as in bindings-wasm/src/bytes.rs.
const [UNSET, MILLIS, BOOL, STRING] = [0, 1, 2, 3]

// The arguments of one call.
class Arguments {
  #bytes = new Uint8Array(512)
  #view = new DataView(this.#bytes.buffer)
  length = 0

  #room(size) {
    if (this.length + size <= this.#bytes.length) return
    const bytes = new Uint8Array(Math.max(this.#bytes.length * 2, this.length + size))
    bytes.set(this.#bytes.subarray(0, this.length))
    this.#bytes = bytes
    this.#view = new DataView(bytes.buffer)
  }

  // Moves what was written into the memory of the module.
  moveTo(memory, at) {
    new Uint8Array(memory.buffer, at, this.length).set(this.#bytes.subarray(0, this.length))
    this.clear()
  }

  clear() {
    this.length = 0
    if (this.#bytes.length > 1 << 16) {
      this.#bytes = new Uint8Array(512)
      this.#view = new DataView(this.#bytes.buffer)
    }
  }

  byte(value) {
    this.#room(1)
    this.#bytes[this.length] = value
    this.length += 1
    return this
  }

  number(value) {
    this.#room(8)
    this.#view.setFloat64(this.length, value, true)
    this.length += 8
    return this
  }

  // 64 bits without a sign.
  whole(value) {
    this.#room(8)
    this.#view.setBigUint64(this.length, value, true)
    this.length += 8
    return this
  }

  raw(bytes) {
    this.#room(bytes.length)
    this.#bytes.set(bytes, this.length)
    this.length += bytes.length
    return this
  }

  text(text) {
    this.#room(4 + text.length * 3)
    const { written } = encoder.encodeInto(text, this.#bytes.subarray(this.length + 4))
    this.#view.setUint32(this.length, written, true)
    this.length += 4 + written
    return this
  }

  optional(text) {
    return text === undefined ? this.byte(0) : this.byte(1).text(text)
  }

  // The value of an option.
  value(value) {
    if (typeof value === 'number') return this.byte(MILLIS).number(value)
    if (typeof value === 'boolean') return this.byte(BOOL).byte(value ? 1 : 0)
    if (typeof value === 'string') return this.byte(STRING).text(value)
    return this.byte(UNSET)
  }

  options(names, values) {
    names?.forEach((name, at) => this.text(name.isWellFormed() ? name : '\ufffd').value(values[at]))
    return this
  }
}

// Records of one call. One of these reads them all: the memory is looked at anew only where it has grown.
class Records {
  #memory
  #bytes
  #view
  #at = 0
  #end = 0

  // Begins to read the records of another call.
  read({ buffer }, at, length) {
    if (buffer !== this.#memory) {
      this.#memory = buffer
      this.#bytes = new Uint8Array(buffer)
      this.#view = new DataView(buffer)
    }
    this.#at = at
    this.#end = at + length
    return this
  }

  get more() {
    return this.#at < this.#end
  }

  byte() {
    return this.#bytes[this.#at++]
  }

  number() {
    this.#at += 8
    return this.#view.getFloat64(this.#at - 8, true)
  }

  whole() {
    this.#at += 8
    return this.#view.getBigUint64(this.#at - 8, true)
  }

  #taken() {
    const from = this.#at + 4
    this.#at = from + this.#view.getUint32(from - 4, true)
    return [from, this.#at]
  }

  // A copy: the memory changes with the next call.
  bytes() {
    return this.#bytes.slice(...this.#taken())
  }

  text() {
    return decoder.decode(this.#bytes.subarray(...this.#taken()))
  }
}

module.exports = { Arguments, Records, decoder }
