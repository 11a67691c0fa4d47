'use strict'
// The channels of node:diagnostics_channel, and whether anybody listens to one.

const { diagnostics } = require('#host')

// In Cloudflare Workers hasSubscribers is a method.
function isListenedTo(channel) {
  const { hasSubscribers } = channel
  return typeof hasSubscribers === 'function' ? channel.hasSubscribers() : hasSubscribers
}

module.exports = {
  acquiring: diagnostics.tracingChannel('redlatch:acquire'),
  events: diagnostics.channel('redlatch'),
  isListenedTo,
  releasing: diagnostics.tracingChannel('redlatch:release'),
}
