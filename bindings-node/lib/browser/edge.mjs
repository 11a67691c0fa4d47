// The compiled module in an edge function of Vercel, which has what a browser has and compiles nothing: its bundler brings the module.

import compiled from '../../redlatch.wasm?module'

export { compiled }
