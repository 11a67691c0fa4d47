//! `redlatch acl`: the rules of the server (ACL) for a user whose programs take locks.

use redlatch::Kind;
use redlatch::embed::{Part, rules};

use crate::arguments::{Acl, Server};
use crate::connect;
use crate::failure::{Exit, Failure};

/// What is no kind of lock, and needs rules as well.
pub(crate) const COUNTERS: [&str; 2] = ["plain-semaphore", "latch"];

pub(crate) fn acl(server: &Server, arguments: &Acl) -> Result<u8, Failure> {
    let line = line(server, arguments)?;
    crate::print(line.as_bytes())
}

fn line(server: &Server, arguments: &Acl) -> Result<String, Failure> {
    let Acl { user, names, .. } = arguments;
    if [user, names]
        .iter()
        .any(|word| word.contains(char::is_whitespace))
    {
        return Err(Failure::new(
            Exit::Usage,
            "the server's rules are separated by spaces, so neither a user nor a pattern of names can have one; write `?` in \
             its place",
        ));
    }
    // The options are checked as for every client. None is connected.
    let url = connect::url_if_given(server)?;
    connect::client_at(url.as_deref().unwrap_or("redis://localhost"), server)?;
    let scheme = url.as_deref().and_then(|url| url.split("://").next());
    let scheme = scheme.unwrap_or_default();

    let mut parts = vec![Part::Lock];
    let is_on = |name| server.given(name).is_some_and(|value| value != "false");
    if is_on("fencing") || is_on("fencing_expires") {
        parts.push(Part::Fencing);
    }
    if !arguments.redis_6 {
        parts.push(Part::Since7);
    }
    if arguments.cluster || scheme.ends_with("+cluster") {
        parts.push(match arguments.redis_6 {
            true => Part::ClusterBefore7,
            false => Part::Cluster,
        });
    }
    if arguments.sentinel || scheme.ends_with("+sentinel") {
        parts.push(Part::Sentinel);
    }
    if arguments.tool {
        parts.push(Part::Tool);
    }
    let mut kinds: Vec<&str> = arguments.kinds.iter().map(String::as_str).collect();
    if kinds.is_empty() {
        kinds.push(server.given("kind").unwrap_or(Kind::Reentrant.name()));
    }
    let mut all: Vec<String> = Vec::new();
    for kind in kinds {
        let mut parts = parts.clone();
        let key = match Kind::named(kind) {
            Some(kind) => {
                parts.extend(Part::of(kind));
                if kind.takes_permits() && is_on("fair") {
                    parts.extend(Part::of(Kind::FairSemaphore));
                }
                if matches!(kind, Kind::Read | Kind::Write) && is_on("writer_preference") {
                    parts.push(Part::WriterPreference);
                }
                kind.key(names.as_str().into())
            }
            None => {
                parts.push(Part::Counter);
                if kind == "plain-semaphore" {
                    parts.push(Part::Crowd);
                }
                names.as_str().into()
            }
        };
        let more = rules(&parts, &key);
        all.extend(
            more.into_iter()
                .filter(|rule| !all.contains(rule))
                .collect::<Vec<_>>(),
        );
    }
    // Keys, channels, commands.
    all.sort_by_key(|rule| match rule.as_bytes().first() {
        Some(b'~') => 0,
        Some(b'&') => 1,
        _ => 2,
    });
    let all = all.join(" ");
    Ok(match arguments.file {
        true => format!("user {user} on >password resetchannels {all}\n"),
        false => format!("ACL SETUSER {user} reset on >password resetchannels {all}\n"),
    })
}
