'use strict'
// Values by number, for what comes and goes all the time. Each table that a Map or a Set outgrows points to the next one.
// Once one of them is old, after a single full collection of garbage at the latest, the collections of young garbage keep
// all tables that come after it, and all that was ever in them: they take milliseconds each, and a full one soon follows.

const LEAST = 8 // as a power of two

class Table {
  #numbers // 0 where there is none
  #values
  #bits
  #size = 0

  constructor() {
    this.#make(LEAST)
  }

  #make(bits) {
    this.#bits = bits
    this.#numbers = new Float64Array(1 << bits)
    this.#values = new Array(1 << bits).fill(undefined)
  }

  // Where a number belongs; it stands there or in the next free place. Numbers are counted up, and would stand in a row
  // through which all others had to pass, if they were not scattered.
  #home(number) {
    return Math.imul(number, 0x9e3779b1) >>> (32 - this.#bits)
  }

  // Where the number stands, or the free place where it would.
  #find(number) {
    const numbers = this.#numbers
    const last = numbers.length - 1
    let at = this.#home(number)
    while (numbers[at] !== number && numbers[at] !== 0) at = (at + 1) & last
    return at
  }

  get(number) {
    return this.#values[this.#find(number)]
  }

  set(number, value) {
    const at = this.#find(number)
    this.#values[at] = value
    if (this.#numbers[at] === number) return
    this.#numbers[at] = number
    this.#size += 1
    if (this.#size * 4 > this.#numbers.length * 3) this.#resize(this.#bits + 1)
  }

  // Takes a value out; undefined if there is none.
  take(number) {
    const at = this.#find(number)
    if (this.#numbers[at] === 0) return undefined
    const value = this.#values[at]
    this.#close(at)
    this.#size -= 1
    // Late: in a loop many calls are answered together, and as many are made then.
    if (this.#size * 64 < this.#numbers.length && this.#bits > LEAST) this.#resize(this.#bits - 1)
    return value
  }

  // Frees a place: who stands behind it and belongs before or at it moves up.
  #close(free) {
    const [numbers, values] = [this.#numbers, this.#values]
    const last = numbers.length - 1
    for (let at = (free + 1) & last; numbers[at] !== 0; at = (at + 1) & last) {
      if (((at - this.#home(numbers[at])) & last) < ((at - free) & last)) continue
      numbers[free] = numbers[at]
      values[free] = values[at]
      free = at
    }
    numbers[free] = 0
    values[free] = undefined
  }

  #resize(bits) {
    const [numbers, values] = [this.#numbers, this.#values]
    this.#make(bits)
    for (let from = 0; from < numbers.length; from += 1) {
      if (numbers[from] === 0) continue
      const at = this.#find(numbers[from])
      this.#numbers[at] = numbers[from]
      this.#values[at] = values[from]
    }
  }

  // Calls `act` with each number and its value. It must not change the table.
  forEach(act) {
    this.#numbers.forEach((number, at) => number !== 0 && act(number, this.#values[at]))
  }

  // Takes all values out.
  takeAll() {
    const values = this.#values.filter((_, at) => this.#numbers[at] !== 0)
    this.#size = 0
    this.#make(LEAST)
    return values
  }
}

module.exports = { Table }
