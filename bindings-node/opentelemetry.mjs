import opentelemetry from './opentelemetry.js'

export const { instrument } = opentelemetry
