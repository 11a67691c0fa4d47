# The same Worker for workerd alone, after it was bundled: docs/wasm.md has the commands. wrangler needs its wrangler.toml only.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    # By default a Worker reaches no private addresses.
    (name = "internet", network = (allow = ["public", "private"], tlsOptions = (trustBrowserCas = true))),
  ],
  sockets = [(name = "http", address = "127.0.0.1:8787", http = (), service = "main")],
);

const worker :Workerd.Worker = (
  modules = [
    (name = "worker.js", esModule = embed "worker.js"),
    (name = "redlatch.wasm", wasm = embed "redlatch.wasm"),
  ],
  compatibilityDate = "2026-03-17",
  compatibilityFlags = ["nodejs_compat"],
  bindings = [(name = "REDLATCH_URL", fromEnvironment = "REDLATCH_URL")],
);
