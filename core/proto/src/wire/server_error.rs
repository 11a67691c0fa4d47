//! Maps an error of the server to an error kind and a remedy.

use crate::error::{Error, ErrorKind};

/// The known codes, their kind, whether they are transient, and the remedy.
const CODES: &[(&str, ErrorKind, bool, &str)] = &[
    (
        "WRONGPASS",
        ErrorKind::Auth,
        false,
        "check the user name and password",
    ),
    (
        "NOAUTH",
        ErrorKind::Auth,
        false,
        "give a password (and user name) in the URL",
    ),
    (
        "NOPERM",
        ErrorKind::Denied,
        false,
        "extend the ACL of this user; docs/errors.md has the commands",
    ),
    (
        "LOADING",
        ErrorKind::Server,
        true,
        "the server is loading its data; try again",
    ),
    (
        "BUSY",
        ErrorKind::Server,
        true,
        "the server is busy running a script; try again",
    ),
    (
        "READONLY",
        ErrorKind::Server,
        true,
        "this server is a replica; connect to the primary",
    ),
    (
        "MASTERDOWN",
        ErrorKind::Server,
        true,
        "this replica has lost its primary; connect to the primary",
    ),
    (
        "CLUSTERDOWN",
        ErrorKind::Server,
        true,
        "the cluster is down; try again when it has recovered",
    ),
    (
        "TRYAGAIN",
        ErrorKind::Server,
        true,
        "the slot is being moved; try again",
    ),
    (
        "MOVED",
        ErrorKind::Server,
        false,
        "this server is a node of a cluster; use redis+cluster:// in the URL",
    ),
    (
        "ASK",
        ErrorKind::Server,
        true,
        "this server is a node of a cluster; use redis+cluster:// in the URL",
    ),
    (
        "NOREPLICAS",
        ErrorKind::Server,
        true,
        "too few replicas are connected (min-replicas-to-write)",
    ),
    (
        "MISCONF",
        ErrorKind::Server,
        true,
        "the server cannot persist its data; see its log",
    ),
    (
        "MAXCLIENTS",
        ErrorKind::Unavailable,
        true,
        "the server has too many clients; raise maxclients, or close some",
    ),
    (
        "OOM",
        ErrorKind::Server,
        false,
        "the server's memory is full; raise maxmemory or remove data",
    ),
    (
        "WRONGTYPE",
        ErrorKind::ForeignKind,
        false,
        "other data lies at this name; use another name",
    ),
];

/// Phrases with which a script reports that a command in it was denied. Such texts have no code of
/// their own.
const DENIED: &[&str] = &[
    "can't run this command",
    "can't access",
    "No permissions",
    "no permissions",
];

/// Phrases of servers that do not fit the URL, and the remedy. These errors have no code of their
/// own.
const MISFITS: &[(&str, &str)] = &[
    (
        "DB index is out of range",
        "the URL names a database that this server does not have (see its setting databases); name another one",
    ),
    (
        "cluster support disabled",
        "this server is no node of a cluster; use redis:// (or rediss://) in the URL",
    ),
    (
        "unknown command 'SENTINEL'",
        "this server is no sentinel; name the address of sentinels in the URL, or use redis:// for one server",
    ),
];

/// The text with which a server rejects a connection above its limit. It has no code.
const TOO_MANY: &str = "max number of clients";

/// The error for an answer with this code and text, and whether it is transient: loading, busy, a
/// demoted primary. The server did nothing in that case.
pub fn refusal(code: &str, text: &str) -> (Error, bool) {
    let (kind, passing, remedy) = meaning(code, text);
    let said = format!("{code} {}", without_arguments(text));
    let text = format!("the server said {:?}; {remedy}", said.trim());
    (Error::new(kind, text), passing)
}

fn meaning(code: &str, text: &str) -> (ErrorKind, bool, &'static str) {
    if let Some(remedy) = misfit(text) {
        return (ErrorKind::InvalidArgument, false, remedy);
    }
    let known = |word: &str| CODES.iter().find(|(code, ..)| *code == word);
    let row = match known(code) {
        Some(row) => Some(row),
        None if text.contains(TOO_MANY) => known("MAXCLIENTS"),
        None if DENIED.iter().any(|phrase| text.contains(phrase)) => known("NOPERM"),
        // Before Redis 7, an error inside a script is an `ERR` with the real code in its text.
        None => text
            .split_whitespace()
            .find_map(|word| known(word.trim_start_matches('-'))),
    };
    row.map_or((ErrorKind::Server, false, "see the server's log"), |row| {
        (row.1, row.2, row.3)
    })
}

fn misfit(text: &str) -> Option<&'static str> {
    // The server repeats our arguments in its text; they must not match. Old servers quote with a
    // backtick.
    let said = without_arguments(text).replace('`', "'");
    MISFITS
        .iter()
        .find(|(words, _)| said.contains(words))
        .map(|(_, remedy)| *remedy)
}

/// The text before the point where an "unknown command" error repeats the arguments: those of
/// `AUTH` and `HELLO` are secret. Cut to what is readable in one line.
fn without_arguments(text: &str) -> String {
    let end = text.find(", with args").unwrap_or(text.len());
    text[..end].chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &str, text: &str) -> (ErrorKind, bool) {
        let (error, passing) = refusal(code, text);
        (error.kind(), passing)
    }

    #[test]
    fn codes_have_kinds() {
        use ErrorKind::*;
        for (code, expected) in [
            ("WRONGPASS", (Auth, false)),
            ("NOAUTH", (Auth, false)),
            ("NOPERM", (Denied, false)),
            ("LOADING", (Server, true)),
            ("BUSY", (Server, true)),
            ("READONLY", (Server, true)),
            ("MASTERDOWN", (Server, true)),
            ("CLUSTERDOWN", (Server, true)),
            ("TRYAGAIN", (Server, true)),
            ("MOVED", (Server, false)),
            ("ASK", (Server, true)),
            ("NOREPLICAS", (Server, true)),
            ("MISCONF", (Server, true)),
            ("OOM", (Server, false)),
            ("WRONGTYPE", (ForeignKind, false)),
            ("ERR", (Server, false)),
            ("SOMETHING", (Server, false)),
        ] {
            assert_eq!(kind(code, "some words"), expected, "{code}");
        }
    }

    #[test]
    fn errors_inside_scripts_are_recognised() {
        for (text, expected) in [
            (
                "The user executing the script can't run this command or subcommand",
                ErrorKind::Denied,
            ),
            (
                "The user executing the script can't access at least one of the keys",
                ErrorKind::Denied,
            ),
            (
                "ACL failure in script: User x has no permissions to run the 'get' command",
                ErrorKind::Denied,
            ),
            (
                "Error running script (call to f_8c): @user_script:5: @user_script: 5: -READONLY You can't \
                 write against a read only replica.",
                ErrorKind::Server,
            ),
            (
                "Error running script (call to f_8c): @user_script:5: WRONGTYPE Operation",
                ErrorKind::ForeignKind,
            ),
            ("max number of clients reached", ErrorKind::Unavailable),
        ] {
            assert_eq!(kind("ERR", text).0, expected, "{text}");
        }
        assert!(kind("ERR", "max number of clients + cluster connections reached").1);
        assert!(
            kind(
                "ERR",
                "Error running script: @user_script: 5: -LOADING Redis is loading"
            )
            .1
        );
    }

    #[test]
    fn a_url_that_does_not_fit_the_server_is_said_to_be_that_and_not_tried_again() {
        for (text, remedy) in [
            ("DB index is out of range", "names a database"),
            ("This instance has cluster support disabled", "redis://"),
            (
                "unknown command 'SENTINEL', with args beginning with: 'GET-MASTER-ADDR-BY-NAME' ",
                "no sentinel",
            ),
            (
                "unknown command `SENTINEL`, with args beginning with: ",
                "no sentinel",
            ),
        ] {
            let (error, passing) = refusal("ERR", text);
            assert_eq!(
                (error.kind(), passing),
                (ErrorKind::InvalidArgument, false),
                "{text}"
            );
            assert!(error.message().contains(remedy), "{error}");
        }
        assert_eq!(kind("ERR", "unknown command 'FOO'").0, ErrorKind::Server);
        let ours = "unknown command 'EVALSHA', with args beginning with: 'SENTINEL' ";
        assert_eq!(kind("ERR", ours), (ErrorKind::Server, false));
    }

    #[test]
    fn secrets_are_cut_off() {
        let text =
            "unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `app`, `hunter2`, ";
        let (error, _) = refusal("ERR", text);
        assert!(!error.message().contains("hunter2"), "{error}");
        assert!(error.message().contains("unknown command `HELLO`"));
        assert!(refusal("ERR", &"ü".repeat(5000)).0.message().len() < 500);
    }
}
