'use strict'
// The compiled module: browser.mjs fetches it before anything else of the package runs.

module.exports = { compiled: undefined }
