//! The commands that concern a connection, scripts, and the server itself.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::commands::{Answer, SYNTAX, integer, unknown};
use crate::hub::{Client, ClientId, Hub, Reach, wrong_number};
use crate::lua::{Lua, VERSION};
use crate::resp::{Reply, Words};

/// The end of a command.
pub(crate) enum Outcome {
    Reply(Reply),
    /// The reply comes after a while, unless the connection ends.
    Later(Duration, Reply),
    /// The reply is the last one.
    Quit(Reply),
}

/// All that a connection is served with.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) hub: Rc<RefCell<Hub>>,
    pub(crate) lua: Rc<Lua>,
}

impl Server {
    /// A script that runs when `stops` becomes true ends.
    pub(crate) fn new(hub: Hub, stops: Arc<AtomicBool>) -> Self {
        let hub = Rc::new(RefCell::new(hub));
        let lua = Rc::new(Lua::new(hub.clone(), stops));
        Server { hub, lua }
    }

    /// Runs a command, all but its reply.
    pub(crate) fn run(&self, id: ClientId, words: &Words) -> Outcome {
        let Some((first, args)) = words.split_first() else {
            return Outcome::Reply(Reply::Several(Vec::new()));
        };
        let name = String::from_utf8_lossy(first).to_ascii_uppercase();
        let mut hub = self.hub.borrow_mut();
        hub.begin(id);
        // A password is not shown.
        if !["AUTH", "HELLO", "MONITOR"].contains(&name.as_str()) {
            let client = hub.clients.get(&id);
            let address = client.map(|client| client.addresses[0].clone());
            hub.show(&address.unwrap_or_default(), words);
        }
        drop(hub);
        match name.as_str() {
            "QUIT" => return Outcome::Quit(Reply::OK),
            "WAIT" if args.len() == 2 => match (integer(&args[0]), integer(&args[1])) {
                // It has no replicas.
                (Ok(replicas), Ok(ms)) if replicas > 0 => {
                    let ms = u64::try_from(ms)
                        .ok()
                        .filter(|ms| *ms > 0)
                        .unwrap_or(u64::MAX / 2);
                    self.hub.borrow_mut().rest();
                    return Outcome::Later(Duration::from_millis(ms), Reply::Int(0));
                }
                (Ok(_), Ok(_)) => return Outcome::Reply(Reply::Int(0)),
                _ => {
                    return Outcome::Reply(Reply::Error(
                        "ERR value is not an integer or out of range".to_owned(),
                    ));
                }
            },
            _ => {}
        }
        let answer = self.answer(id, &name, args);
        Outcome::Reply(answer.unwrap_or_else(Reply::Error))
    }

    fn answer(&self, id: ClientId, name: &str, args: &[Vec<u8>]) -> Answer {
        if let Some(refusal) = self.refusal_while_subscribed(id, name) {
            return Err(refusal);
        }
        match name {
            "EVAL" | "EVAL_RO" | "EVALSHA" | "EVALSHA_RO" => self.eval(name, args),
            "SCRIPT" => self.script(args),
            _ => {
                let mut hub = self.hub.borrow_mut();
                if name == "PING" && !resp3(&hub, id) && hub.subscriptions(id, None) > 0 {
                    let text = args.first().map_or(Reply::bulk(""), Reply::bulk);
                    return Ok(Reply::Array(vec![Reply::bulk("pong"), text]));
                }
                match hub.run(name, args) {
                    Some(answer) => answer,
                    None => other(&mut hub, id, name, args),
                }
            }
        }
    }

    /// With RESP2 a connection that is subscribed takes few commands.
    fn refusal_while_subscribed(&self, id: ClientId, name: &str) -> Option<String> {
        let hub = self.hub.borrow();
        let allowed = name.ends_with("SUBSCRIBE") || ["PING", "RESET"].contains(&name);
        let refused = !allowed && !resp3(&hub, id) && hub.subscriptions(id, None) > 0;
        refused.then(|| {
            format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
                name.to_lowercase()
            )
        })
    }

    fn eval(&self, name: &str, args: &[Vec<u8>]) -> Answer {
        let [script, count, rest @ ..] = args else {
            return Err(wrong_number(name));
        };
        let count =
            integer(count).map_err(|_| "ERR value is not an integer or out of range".to_owned())?;
        let count = usize::try_from(count)
            .map_err(|_| "ERR Number of keys can't be negative".to_owned())?;
        if count > rest.len() {
            return Err("ERR Number of keys can't be greater than number of args".to_owned());
        }
        let (keys, args) = rest.split_at(count);
        let sha1 = if name.starts_with("EVALSHA") {
            String::from_utf8_lossy(script).to_ascii_lowercase()
        } else {
            self.lua.load(script)?
        };
        self.lua.call(&sha1, keys, args)
    }

    fn script(&self, args: &[Vec<u8>]) -> Answer {
        let (what, rest) = subcommand("SCRIPT", args)?;
        match (what.as_str(), rest) {
            ("LOAD", [text]) => Ok(Reply::bulk(self.lua.load(text)?)),
            ("EXISTS", [_, ..]) => {
                let known = |sha1: &Vec<u8>| {
                    self.lua
                        .knows(&String::from_utf8_lossy(sha1).to_ascii_lowercase())
                };
                Ok(Reply::Array(
                    rest.iter().map(|sha1| Reply::flag(known(sha1))).collect(),
                ))
            }
            ("FLUSH", _) => {
                self.lua.forget();
                Ok(Reply::OK)
            }
            _ => Err(unknown_subcommand("SCRIPT", &what)),
        }
    }
}

fn resp3(hub: &Hub, id: ClientId) -> bool {
    hub.clients.get(&id).is_some_and(|client| client.resp3)
}

fn subcommand<'a>(name: &str, args: &'a [Vec<u8>]) -> Result<(String, &'a [Vec<u8>]), String> {
    let (first, rest) = args.split_first().ok_or_else(|| wrong_number(name))?;
    Ok((String::from_utf8_lossy(first).to_ascii_uppercase(), rest))
}

fn unknown_subcommand(name: &str, what: &str) -> String {
    format!(
        "ERR unknown subcommand '{}' of '{}': the in-memory server of redlatch has only what redlatch needs",
        what.to_lowercase(),
        name.to_lowercase()
    )
}

fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

/// The commands that no script calls.
fn other(hub: &mut Hub, id: ClientId, name: &str, args: &[Vec<u8>]) -> Answer {
    match (name, args) {
        ("HELLO", _) => hello(hub, id, args),
        ("AUTH", _) => Err(
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?"
                .to_owned(),
        ),
        ("CLIENT", _) => client(hub, id, args),
        ("SELECT", [number]) => {
            let number = integer(number).map_err(|_| "ERR invalid DB index".to_owned())?;
            let database = usize::try_from(number)
                .ok()
                .filter(|number| *number < crate::keyspace::DATABASES);
            let database = database.ok_or("ERR DB index is out of range")?;
            if let Some(client) = hub.clients.get_mut(&id) {
                client.database = database;
            }
            Ok(Reply::OK)
        }
        ("SUBSCRIBE", [_, ..]) => Ok(hub.subscribe(id, Reach::Classic, args)),
        ("PSUBSCRIBE", [_, ..]) => Ok(hub.subscribe(id, Reach::Pattern, args)),
        ("SSUBSCRIBE", [_, ..]) => Ok(hub.subscribe(id, Reach::Sharded, args)),
        ("UNSUBSCRIBE", _) => Ok(hub.unsubscribe(id, Reach::Classic, args)),
        ("PUNSUBSCRIBE", _) => Ok(hub.unsubscribe(id, Reach::Pattern, args)),
        ("SUNSUBSCRIBE", _) => Ok(hub.unsubscribe(id, Reach::Sharded, args)),
        ("PUBSUB", _) => pubsub(hub, args),
        ("MONITOR", []) => {
            if let Some(client) = hub.clients.get_mut(&id) {
                client.monitors = true;
            }
            Ok(Reply::OK)
        }
        ("FLUSHDB", _) => {
            let database = hub.caller().database;
            hub.flush(Some(database));
            Ok(Reply::OK)
        }
        ("FLUSHALL", _) => {
            hub.flush(None);
            Ok(Reply::OK)
        }
        ("INFO", _) => Ok(Reply::Text(info(hub, args))),
        ("ROLE", []) => Ok(Reply::Array(vec![
            Reply::bulk("master"),
            Reply::Int(0),
            Reply::Array(Vec::new()),
        ])),
        ("RESET", []) => {
            hub.forget(id);
            if let Some(client) = hub.clients.get_mut(&id) {
                (client.resp3, client.database) = (false, 0);
                (client.tracks, client.monitors) = (false, false);
                client.name.clear();
            }
            Ok(Reply::Status("RESET".into()))
        }
        ("CLUSTER" | "ASKING" | "READONLY" | "READWRITE", _) => {
            Err("ERR This instance has cluster support disabled".to_owned())
        }
        ("SELECT" | "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "ROLE" | "RESET" | "WAIT", _) => {
            Err(wrong_number(name))
        }
        _ => Err(unknown(name)),
    }
}

fn hello(hub: &mut Hub, id: ClientId, args: &[Vec<u8>]) -> Answer {
    let Some(client) = hub.clients.get_mut(&id) else {
        return Err(SYNTAX.to_owned());
    };
    let mut rest = args.iter();
    if let Some(version) = rest.next() {
        client.resp3 = match version.as_slice() {
            b"2" => false,
            b"3" => true,
            _ => return Err("NOPROTO unsupported protocol version".to_owned()),
        };
    }
    while let Some(word) = rest.next() {
        match text(word).to_ascii_uppercase().as_str() {
            "AUTH" => match (rest.next(), rest.next()) {
                (Some(user), Some(_)) if user == b"default" => {}
                (Some(_), Some(_)) => {
                    return Err(
                        "WRONGPASS invalid username-password pair or user is disabled.".to_owned(),
                    );
                }
                _ => return Err(SYNTAX.to_owned()),
            },
            "SETNAME" => client.name = text(rest.next().ok_or(SYNTAX)?),
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let number = i64::try_from(id).unwrap_or(i64::MAX);
    let resp = if client.resp3 { 3 } else { 2 };
    let facts = [
        ("server", Reply::bulk("redis")),
        ("version", Reply::bulk(VERSION)),
        ("proto", Reply::Int(resp)),
        ("id", Reply::Int(number)),
        ("mode", Reply::bulk("standalone")),
        ("role", Reply::bulk("master")),
        ("modules", Reply::Array(Vec::new())),
    ];
    Ok(Reply::Map(
        facts.map(|(name, fact)| (Reply::bulk(name), fact)).into(),
    ))
}

fn client(hub: &mut Hub, id: ClientId, args: &[Vec<u8>]) -> Answer {
    let (what, rest) = subcommand("CLIENT", args)?;
    match (what.as_str(), rest) {
        ("ID", []) => Ok(Reply::Int(i64::try_from(id).unwrap_or(i64::MAX))),
        ("SETNAME", [name]) => {
            if !name.iter().all(u8::is_ascii_graphic) {
                return Err(
                    "ERR Client names cannot contain spaces, newlines or special characters."
                        .to_owned(),
                );
            }
            if let Some(client) = hub.clients.get_mut(&id) {
                client.name = text(name);
            }
            Ok(Reply::OK)
        }
        ("GETNAME", []) => {
            let name = hub.clients.get(&id).map(|client| client.name.clone());
            Ok(name
                .filter(|name| !name.is_empty())
                .map_or(Reply::Nil, Reply::bulk))
        }
        ("SETINFO", [_, _]) => Ok(Reply::OK),
        ("TRACKING", [on, options @ ..]) => {
            let on = on.eq_ignore_ascii_case(b"on");
            let mut no_loop = false;
            for option in options {
                if !option.eq_ignore_ascii_case(b"noloop") {
                    return Err(unknown_subcommand("CLIENT TRACKING", &text(option)));
                }
                no_loop = true;
            }
            // RESP2 has no messages for it.
            let on = on && resp3(hub, id);
            hub.track(id, on, no_loop);
            Ok(Reply::OK)
        }
        ("LIST", _) => {
            let lines = hub
                .clients
                .iter()
                .map(|(id, client)| described(hub, *id, client) + "\n");
            Ok(Reply::Text(lines.collect()))
        }
        ("INFO", []) => {
            let line = hub
                .clients
                .get(&id)
                .map(|client| described(hub, id, client) + "\n");
            Ok(Reply::Text(line.unwrap_or_default()))
        }
        ("KILL", [how, number]) if how.eq_ignore_ascii_case(b"id") => {
            let number = u64::try_from(integer(number)?).map_err(|_| SYNTAX.to_owned())?;
            Ok(Reply::count(hub.close(Some(number))))
        }
        _ => Err(unknown_subcommand("CLIENT", &what)),
    }
}

/// A line of CLIENT LIST.
fn described(hub: &Hub, id: ClientId, client: &Client) -> String {
    let [sub, patterns, shards] = [Reach::Classic, Reach::Pattern, Reach::Sharded]
        .map(|reach| hub.subscriptions(id, Some(reach)));
    let mut flags = String::new();
    if sub + patterns + shards > 0 {
        flags.push('P');
    }
    if client.tracks {
        flags.push('t');
    }
    if flags.is_empty() {
        flags.push('N');
    }
    let [address, local] = &client.addresses;
    format!(
        "id={id} addr={address} laddr={local} fd=0 name={} age={} idle=0 flags={flags} db={} sub={sub} psub={patterns} ssub={shards} \
         multi=-1 user=default redir={} resp={}",
        client.name,
        client.since.elapsed().as_secs(),
        client.database,
        if client.tracks { 0 } else { -1 },
        if client.resp3 { 3 } else { 2 },
    )
}

fn pubsub(hub: &Hub, args: &[Vec<u8>]) -> Answer {
    let (what, rest) = subcommand("PUBSUB", args)?;
    match what.as_str() {
        "NUMSUB" => Ok(hub.subscribers(Reach::Classic, rest)),
        "SHARDNUMSUB" => Ok(hub.subscribers(Reach::Sharded, rest)),
        "CHANNELS" | "SHARDCHANNELS" => {
            let reach = if what == "CHANNELS" {
                Reach::Classic
            } else {
                Reach::Sharded
            };
            let pattern = rest.first().map_or(b"*".as_slice(), Vec::as_slice);
            let names = hub
                .channels(reach)
                .into_iter()
                .filter(|name| redlatch_proto::glob::fits(pattern, name));
            Ok(Reply::Array(names.map(Reply::bulk).collect()))
        }
        _ => Err(unknown_subcommand("PUBSUB", &what)),
    }
}

fn info(hub: &Hub, args: &[Vec<u8>]) -> String {
    let sections = [
        (
            "Server",
            format!(
                "redis_version:{VERSION}\r\nserver_name:redlatch-testing\r\nredis_mode:standalone\r\nprocess_id:{}\r\n",
                std::process::id()
            ),
        ),
        (
            "Clients",
            format!("connected_clients:{}\r\n", hub.clients.len()),
        ),
        (
            "Memory",
            "maxmemory:0\r\nmaxmemory_policy:noeviction\r\n".to_owned(),
        ),
        ("Persistence", "loading:0\r\naof_enabled:0\r\n".to_owned()),
        (
            "Replication",
            "role:master\r\nconnected_slaves:0\r\n".to_owned(),
        ),
        ("Cluster", "cluster_enabled:0\r\n".to_owned()),
    ];
    let wanted = |name: &str| {
        let all = ["all", "default", "everything"].map(str::as_bytes);
        args.is_empty()
            || args.iter().any(|arg| {
                arg.eq_ignore_ascii_case(name.as_bytes()) || all.contains(&arg.as_slice())
            })
    };
    let shown = sections.iter().filter(|(name, _)| wanted(name));
    let parts: Vec<String> = shown
        .map(|(name, facts)| format!("# {name}\r\n{facts}"))
        .collect();
    parts.join("\r\n")
}
