//! Serves the requests of stdin; see `conformance/README.md` for the protocol.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redlatch::embed::all_options;
use redlatch::{
    AcquireOptions, Client, Error, ErrorKind, Guard, Lock, LostReason, Operation, OptionValue,
    ReentryKey, Semaphore,
};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, oneshot};

use crate::counters;
use crate::turn::turn;
use crate::usage::Usage;

pub(crate) type Reply = Map<String, Value>;

/// The options of a client, and the fields of a request that give them.
const OPTIONS: [(&str, &str); 8] = [
    ("watchdog_lease", "watchdog_ms"),
    ("fencing", "fencing"),
    ("recheck", "recheck_ms"),
    ("restart_delay", "restart_delay_ms"),
    ("writer_preference", "preference_ms"),
    ("cluster_pubsub", "cluster_pubsub"),
    ("kind", "kind"),
    ("reentrant", "reentrant"),
];

/// The guards of one actor thread on one side of a lock, newest last, and the key they are acquired
/// with.
struct Seat {
    key: ReentryKey,
    guards: Mutex<Vec<Guard>>,
}

/// The client, the actor thread, the lock and its side (none for a lock without sides).
type Place = (String, String, String, String);

#[derive(Default)]
struct State {
    clients: Mutex<HashMap<String, Client>>,
    /// The owner of each actor thread of a client: it may have both sides of a lock.
    keys: Mutex<HashMap<(String, String), ReentryKey>>,
    seats: Mutex<HashMap<Place, Arc<Seat>>>,
    running: Mutex<HashMap<i64, oneshot::Sender<()>>>,
}

impl State {
    fn seat(&self, request: &Value, lock: &Lock) -> Arc<Seat> {
        let [client, thread, side] =
            ["client", "as", "side"].map(|field| text(request, field).to_owned());
        let key = *locked(&self.keys)
            .entry((client.clone(), thread.clone()))
            .or_insert_with(ReentryKey::new_task);
        let seat = || {
            Arc::new(Seat {
                key,
                guards: Mutex::default(),
            })
        };
        locked(&self.seats)
            .entry((client, thread, lock.name().to_owned(), side))
            .or_insert_with(seat)
            .clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn text<'a>(request: &'a Value, field: &str) -> &'a str {
    request[field].as_str().unwrap_or_default()
}

pub(crate) fn millis(request: &Value, field: &str) -> Option<Duration> {
    request[field].as_u64().map(Duration::from_millis)
}

fn count(request: &Value, field: &str) -> usize {
    let count = request[field].as_u64().unwrap_or_default();
    usize::try_from(count).unwrap_or(usize::MAX)
}

pub(crate) fn ok() -> Reply {
    status("ok")
}

pub(crate) fn status(status: &str) -> Reply {
    Map::from_iter([("status".to_owned(), json!(status))])
}

pub(crate) fn with(field: &str, value: Value) -> Reply {
    let mut reply = ok();
    reply.insert(field.to_owned(), value);
    reply
}

pub(crate) fn failed(error: &Error) -> Reply {
    let mut reply = status(error.kind().name());
    reply.insert("text".into(), json!(format!("{error:#}")));
    if let Some(reason) = error.lost_reason() {
        reply.insert("reason".into(), json!(reason.name()));
    }
    reply
}

/// Every driver of redlatch says this of itself: the tables must be the same in all languages.
fn hello() -> Reply {
    let mut reply = with("language", json!("rust"));
    let numbers = |kinds: &mut dyn Iterator<Item = (&'static str, u8)>| -> Value {
        kinds
            .map(|(name, number)| (name.to_owned(), json!(number)))
            .collect::<Reply>()
            .into()
    };
    let options: Vec<&str> = all_options().map(|info| info.name).collect();
    reply.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
    reply.insert(
        "errors".into(),
        numbers(
            &mut ErrorKind::ALL
                .iter()
                .map(|kind| (kind.name(), kind.number())),
        ),
    );
    reply.insert(
        "reasons".into(),
        numbers(
            &mut LostReason::ALL
                .iter()
                .map(|kind| (kind.name(), kind.number())),
        ),
    );
    reply.insert("options".into(), json!(options));
    reply
}

/// What the process uses, and what the client has under way.
fn usage(client: Option<&Client>) -> Reply {
    let usage = Usage::now();
    let mut reply = with("memory", json!(usage.memory));
    reply.insert("threads".into(), json!(usage.threads));
    reply.insert("files".into(), json!(usage.files));
    if let Some(stats) = client.map(Client::stats) {
        reply.insert("holds".into(), json!(stats.holds));
        reply.insert("waiting".into(), json!(stats.waiting));
    }
    reply
}

/// An option as a request gives it; absent: its default.
fn option_value(given: &Value) -> OptionValue<'_> {
    match given {
        Value::String(text) => OptionValue::Text(text),
        Value::Bool(flag) => OptionValue::Flag(*flag),
        Value::Number(ms) => ms.as_f64().map_or(OptionValue::Unset, OptionValue::Millis),
        _ => OptionValue::Unset,
    }
}

/// Waits as a future, or as a thread that is blocked meanwhile, if the request says so.
pub(crate) async fn wait<T: Send + 'static>(
    request: &Value,
    operation: Operation<T>,
) -> Result<T, Error> {
    if request["blocked"].as_bool() != Some(true) {
        return operation.await;
    }
    let waited = tokio::task::spawn_blocking(move || operation.wait()).await;
    waited.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// The number of permits, if the request names one.
pub(crate) fn permits(request: &Value, options: AcquireOptions) -> AcquireOptions {
    if request["permits"].is_null() {
        options
    } else {
        options.permits(count(request, "permits"))
    }
}

/// The semaphore of a request that names its limit.
fn semaphore_of(client: &Client, request: &Value) -> Result<Semaphore, Error> {
    let options = client.semaphore_options().limit(count(request, "limit"));
    let fair = request["fair"].as_bool() == Some(true);
    client.semaphore_with(text(request, "lock"), options.fair(fair))
}

/// The lock itself, or one side of the read-write lock of that name, or the semaphore, or the multi lock.
pub(crate) fn lock_of(client: &Client, request: &Value) -> Result<Lock, Error> {
    let name = text(request, "lock");
    if !request["limit"].is_null() {
        return Ok(semaphore_of(client, request)?.as_lock().clone());
    }
    if request["multi"].as_bool() == Some(true) {
        return client.multi_lock(name.split(','));
    }
    match text(request, "side") {
        "" => client.lock(name),
        side => {
            let both = client.rw_lock(name)?;
            Ok(if side == "read" {
                both.read().clone()
            } else {
                both.write().clone()
            })
        }
    }
}

async fn perform(state: &State, request: &Value) -> Result<Reply, Error> {
    let name = text(request, "client");
    match text(request, "op") {
        "hello" => return Ok(hello()),
        "open" => {
            let mut builder = Client::builder(text(request, "url"));
            for (option, given) in OPTIONS {
                builder.set(option, option_value(&request[given]))?;
            }
            let client = builder.build()?;
            client.ready().await?;
            locked(&state.clients).insert(name.to_owned(), client);
            return Ok(ok());
        }
        "usage" => return Ok(usage(locked(&state.clients).get(name))),
        "forget" => {
            drop(locked(&state.clients).remove(name));
            return Ok(ok());
        }
        _ => {}
    }
    let Some(client) = locked(&state.clients).get(name).cloned() else {
        return Ok(status("no_client"));
    };
    if text(request, "op") == "close" {
        locked(&state.seats).retain(|(owner, ..), _| owner != name);
        locked(&state.keys).retain(|(owner, _), _| owner != name);
        let unreleased = match client.close().await {
            Err(error) if error.unreleased().is_empty() => return Err(error),
            Err(error) => error.unreleased().to_vec(),
            Ok(()) => Vec::new(),
        };
        return Ok(with("value", json!(unreleased)));
    }
    if !request["counter"].is_null() {
        return counters::perform(&client, request).await;
    }
    if text(request, "op") == "turn" {
        return turn(&client, request).await;
    }
    let lock = lock_of(&client, request)?;
    let seat = state.seat(request, &lock);
    Ok(match text(request, "op") {
        "acquire" => {
            let mut options = AcquireOptions::new().key(seat.key);
            options = millis(request, "wait_ms").map_or(options.clone(), |wait| options.wait(wait));
            options =
                millis(request, "lease_ms").map_or(options.clone(), |lease| options.lease(lease));
            if let Some(token) = request["token"].as_str() {
                options = options.token(token);
            }
            let guard = wait(request, lock.acquire_with(permits(request, options))).await?;
            let reply = with("token", json!(guard.fencing_token()));
            let longer = millis(request, "extend_ms").map(|lease| guard.extend(lease));
            locked(&seat.guards).push(guard);
            if let Some(extension) = longer {
                wait(request, extension).await?;
            }
            reply
        }
        "adopt" => {
            let adoption =
                lock.adopt_with(text(request, "token"), AcquireOptions::new().key(seat.key));
            let guard = wait(request, adoption).await?;
            locked(&seat.guards).push(guard);
            ok()
        }
        "release" => {
            let guard = locked(&seat.guards).pop();
            match guard {
                Some(guard) => wait(request, guard.release()).await?,
                None => wait(request, lock.release_by(seat.key)).await?,
            }
            ok()
        }
        "extend" => {
            let lease = millis(request, "lease_ms").unwrap_or_default();
            wait(request, lock.extend_by(seat.key, lease)).await?;
            ok()
        }
        "force" => with("value", json!(wait(request, lock.force_release()).await?)),
        "held" => with("value", json!(lock.hold(seat.key).is_held())),
        "count" => with("value", json!(lock.hold(seat.key).count())),
        "locked" => with("value", json!(wait(request, lock.is_locked()).await?)),
        "holder" => {
            let holder = wait(request, lock.holder()).await?;
            with(
                "value",
                holder.map_or(
                    Value::Null,
                    |holder| json!({"owner": holder.owner, "count": holder.count}),
                ),
            )
        }
        "permits" => {
            let permits = wait(request, semaphore_of(&client, request)?.permits()).await?;
            let mut reply = with("free", json!(permits.available));
            reply.insert("limit".to_owned(), json!(permits.limit));
            reply
        }
        "set" => {
            let semaphore = semaphore_of(&client, request)?;
            wait(request, semaphore.set_permits(count(request, "permits"))).await?;
            ok()
        }
        "holders" => {
            let holders = wait(request, lock.holders()).await?;
            with(
                "value",
                json!(holders.iter().map(|holder| holder.count).sum::<u32>()),
            )
        }
        "lost" => lost(&seat, millis(request, "within_ms").unwrap_or_default()).await,
        _ => status("unsupported"),
    })
}

/// Waits until the seat's hold is told lost.
async fn lost(seat: &Seat, within: Duration) -> Reply {
    let told = Arc::new((Notify::new(), Mutex::new(None)));
    {
        let guards = locked(&seat.guards);
        let Some(guard) = guards.last() else {
            return status("not_owner");
        };
        let told = told.clone();
        guard.on_lost(move |reason| {
            *locked(&told.1) = Some(reason);
            told.0.notify_one();
        });
    }
    let _ = tokio::time::timeout(within, told.0.notified()).await;
    let reason = *locked(&told.1);
    reason.map_or(status("timeout"), |reason| {
        with("reason", json!(reason.name()))
    })
}

async fn serve(state: Arc<State>, request: Value) {
    let id = request["id"].as_i64().unwrap_or_default();
    let reply = if text(&request, "op") == "cancel" {
        let target = locked(&state.running).remove(&request["target"].as_i64().unwrap_or_default());
        if target.is_some_and(|cancel| cancel.send(()).is_ok()) {
            ok()
        } else {
            status("not_found")
        }
    } else {
        let (cancel, cancelled) = oneshot::channel();
        locked(&state.running).insert(id, cancel);
        let reply = tokio::select! {
            result = perform(&state, &request) => result.unwrap_or_else(|error| failed(&error)),
            Ok(()) = cancelled => status("cancelled"),
        };
        locked(&state.running).remove(&id);
        reply
    };
    let mut reply = reply;
    reply.insert("id".into(), json!(id));
    println!("{}", Value::Object(reply));
}

/// A thread reads, so that the runtime has the same threads all the time.
pub(crate) fn serve_stdin() -> std::io::Result<()> {
    let state = Arc::new(State::default());
    let runtime = Runtime::new()?;
    for line in std::io::stdin().lines() {
        match serde_json::from_str(&line?) {
            Ok(request) => drop(runtime.spawn(serve(state.clone(), request))),
            Err(error) => eprintln!("not a request: {error}"),
        }
    }
    Ok(())
}
