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
        "extend the ACL of this user; docs/security.md has the commands",
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
        "DENIED",
        ErrorKind::Server,
        true,
        "the server is in protected mode; set a password there, or let it serve other machines",
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

/// How texts of `ERR` begin that have no code of their own, the row of [`CODES`] that says what they
/// mean.
const PHRASES: &[(&str, &str)] = &[
    ("the user executing the script can't", "NOPERM"),
    ("acl failure in script", "NOPERM"),
    ("max number of clients", "MAXCLIENTS"),
];

const OLD: &str = "the server is older than Redis 6.2, or keeps this command back; redlatch needs Redis 6.2 or newer, \
     or Valkey 8.1 or newer, with the commands in docs/security.md";
const NO_SCRIPTS: &str = "every lock needs EVAL and EVALSHA, and this server has them renamed or switched off; allow them";

/// How texts of `ERR` begin of servers that do not fit, the kind and the remedy. None of them passes
/// by itself.
const MISFITS: &[(&str, ErrorKind, &str)] = &[
    (
        "db index is out of range",
        ErrorKind::InvalidArgument,
        "the URL names a database that this server does not have (see its setting databases); name another one",
    ),
    (
        "this instance has cluster support disabled",
        ErrorKind::InvalidArgument,
        "this server is no node of a cluster; use redis:// (or rediss://) in the URL",
    ),
    (
        "unknown command 'sentinel'",
        ErrorKind::InvalidArgument,
        "this server is no sentinel; name the address of sentinels in the URL, or use redis:// for one server",
    ),
    ("unknown command 'eval'", ErrorKind::Denied, NO_SCRIPTS),
    ("unknown command 'evalsha'", ErrorKind::Denied, NO_SCRIPTS),
    ("unknown command", ErrorKind::InvalidArgument, OLD),
    ("unknown subcommand", ErrorKind::InvalidArgument, OLD),
    (
        "unknown redis command called from script",
        ErrorKind::InvalidArgument,
        OLD,
    ),
    ("syntax error", ErrorKind::InvalidArgument, OLD),
    (
        "wrong number of arguments for 'auth'",
        ErrorKind::InvalidArgument,
        "the server is older than Redis 6, which has no users; leave the user name out of the URL",
    ),
];

/// The error for an answer with this code and text, and whether it is transient: loading, busy, a
/// demoted primary. The server did nothing in that case.
///
/// Only the code decides, or the beginning of a text without one: further behind, servers repeat our
/// arguments, and these may have the words of any error.
pub fn refusal(code: &str, text: &str) -> (Error, bool) {
    let (kind, passing, remedy) = meaning(code, text);
    let said = format!("{code} {}", without_arguments(text));
    let text = format!("the server said {:?}; {remedy}", said.trim());
    (Error::new(kind, text), passing)
}

/// The code of an error. Before Redis 7, an error inside a script is an `ERR`, and its own code comes
/// behind the place in the script.
pub fn code_of<'a>(code: &'a str, text: &'a str) -> &'a str {
    let inner = inner(text).filter(|_| code == "ERR");
    let own = inner.and_then(|inner| inner.split_whitespace().next());
    own.filter(|word| row(word).is_some()).unwrap_or(code)
}

fn row(code: &str) -> Option<&'static (&'static str, ErrorKind, bool, &'static str)> {
    CODES.iter().find(|(known, ..)| *known == code)
}

/// The error of a command inside a script, behind the places where it happened, as servers before
/// Redis 7 tell it: `Error running script (call to f_8c): @user_script:5: @user_script: 5: -READONLY
/// You can't ...`.
fn inner(text: &str) -> Option<&str> {
    let place = |text: &'_ str| text.trim_start_matches('@').starts_with("user_script:");
    let mut rest = match text.strip_prefix("Error running script") {
        Some(rest) => rest.split_once(": ")?.1,
        None => Some(text).filter(|text| place(text))?,
    };
    while place(rest) {
        rest = rest.split_once(':')?.1.split_once(": ")?.1;
    }
    Some(rest.strip_prefix('-').unwrap_or(rest))
}

fn meaning(code: &str, text: &str) -> (ErrorKind, bool, &'static str) {
    let mut known = row(code_of(code, text));
    if code == "ERR" && known.is_none() {
        let said = inner(text).unwrap_or(text);
        let said = said.strip_prefix("ERR ").unwrap_or(said);
        // Old servers quote with a backtick, and each writes commands as it likes.
        let said = without_arguments(said)
            .replace('`', "'")
            .to_ascii_lowercase();
        if let Some((_, kind, remedy)) = MISFITS.iter().find(|(words, ..)| said.starts_with(words))
        {
            return (*kind, false, remedy);
        }
        let phrase = PHRASES.iter().find(|(words, _)| said.starts_with(words));
        known = phrase.and_then(|(_, code)| row(code));
    }
    known.map_or((ErrorKind::Server, false, "see the server's log"), |row| {
        (row.1, row.2, row.3)
    })
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
            (
                "user_script:12: -WRONGTYPE Operation against a key",
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
        let ours = "unknown command 'EVALSHA', with args beginning with: 'SENTINEL' ";
        assert_eq!(kind("ERR", ours), (ErrorKind::Denied, false));
    }

    /// A lock named "job BUSY now" waited for ever where EVALSHA was refused, as our own script's
    /// constants did for EVAL.
    #[test]
    fn words_of_our_arguments_decide_nothing() {
        let args = "'local STALE = 0 local ACQUIRED = 1 local BUSY = 2' '1' 'job BUSY now' 'x OOM y' '-READONLY no permissions' \
             'max number of clients' 'DB index is out of range'";
        for code in ["ERR", "SOMETHING", "upstream"] {
            for text in [
                format!("unknown command 'EVAL', with args beginning with: {args}"),
                format!("the proxy knows no EVAL {args}"),
                format!("BUSY {args}"),
            ] {
                let (error, passing) = refusal(code, &text);
                assert!(
                    !passing && matches!(error.kind(), ErrorKind::Server | ErrorKind::Denied),
                    "{code} {text}: {error}"
                );
                assert_eq!(code_of(code, &text), code);
            }
        }
    }

    #[test]
    fn a_server_that_lacks_what_a_lock_needs_is_said_to_be_that_and_not_tried_again() {
        use ErrorKind::*;
        for (text, kind, cause) in [
            (
                "unknown command `HELLO`, with args beginning with: `3`, ",
                InvalidArgument,
                "older than Redis 6.2",
            ),
            ("unknown command 'EVAL'", Denied, "renamed or switched off"),
            (
                "unknown command `evalsha`, with args beginning with: ",
                Denied,
                "renamed or switched off",
            ),
            ("syntax error", InvalidArgument, "older than Redis 6.2"),
            (
                "Error running script (call to f_8c): @user_script:5: ERR syntax error",
                InvalidArgument,
                "older than Redis 6.2",
            ),
            (
                "Error running script (call to f_8c): @user_script:5: @user_script: 5: Unknown Redis command called from script",
                InvalidArgument,
                "older than Redis 6.2",
            ),
            (
                "Unknown Redis command called from script script: f_8c, on @user_script:5.",
                InvalidArgument,
                "older than Redis 6.2",
            ),
            (
                "wrong number of arguments for 'auth' command",
                InvalidArgument,
                "user name",
            ),
        ] {
            let (error, passing) = refusal("ERR", text);
            assert_eq!((error.kind(), passing), (kind, false), "{text}");
            assert!(error.message().contains(cause), "{error}");
        }
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
