export * from './web-locks.js'
