'use strict'

// How far the clock of the day goes ahead of the clock of the process before it counts, in milliseconds. Both are corrected and rounded.
const LEAST_GAP = 100

// Makes a clock in microseconds that never goes back, from the clocks of the day and of the process, in milliseconds. The clock of
// the process stands still while the machine is suspended, and leases do not. So the time by which the clock of the day has gone
// ahead since the last look counts as well. If somebody sets it ahead, holds end early. If somebody sets it back, nothing is
// taken away. A look at which the clock of the process goes back tells nothing: outside of a request, that of Cloudflare's Workers may
// stand at 0 while the clock of the day goes on.
function clockOf(day, running) {
  const began = running()
  let slept = 0
  let lastGap = day() - began
  let lastPassed = began

  return () => {
    let passed
    let gap
    // This process may have had to wait for a core between the two looks: that is no gap.
    do {
      passed = running()
      gap = day() - passed
    } while (running() - passed > LEAST_GAP / 2)
    if (passed < lastPassed) {
      passed = lastPassed
    } else {
      if (gap - lastGap > LEAST_GAP) slept += gap - lastGap
      lastGap = gap
      lastPassed = passed
    }
    return Math.floor((passed - began + slept) * 1000) + 1
  }
}

module.exports = { clockOf }
