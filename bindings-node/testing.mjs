import testing from './testing.js'

export const { MemoryServer } = testing
