import type { MeterProvider, TracerProvider } from '@opentelemetry/api'

export interface Providers {
  /** Default: the global one. */
  meterProvider?: MeterProvider
  /** Default: the global one. */
  tracerProvider?: TracerProvider
}

/**
 * Has OpenTelemetry hear of all clients of this thread, from now on and until the function that it returns is called.
 * The package `@opentelemetry/api` has to be installed.
 */
export function instrument(providers?: Providers): () => void
