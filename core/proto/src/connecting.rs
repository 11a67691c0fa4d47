//! Connecting, as far as every driver does the same: the texts of its errors and events, and the
//! pauses between attempts. A driver has the sockets.

use std::fmt::Display;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Piece};
use crate::event::{Event, Level};
use crate::tuning;
use crate::wire;

/// The error for an attempt that took too long.
pub fn late(addr: &str, tls: bool, limit: Duration) -> Error {
    let what = if tls { "speaking TLS" } else { "running" };
    let text = format!(
        "no answer from {addr} within {limit:?}; is a Redis server {what} there, and not overloaded?"
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// The error for a connection that was lost while it was in use.
pub fn broken(addr: &str, why: &str) -> Error {
    let text = format!("the connection to {addr} {why}; connecting again");
    Error::new(ErrorKind::Unavailable, text)
}

/// The error for a connection to a server that turned out to be a replica.
pub fn demoted(addr: &str) -> Error {
    let text = format!(
        "{addr} is a replica, which takes no locks; connecting again, as the address may lead to the primary \
         by then"
    );
    Error::new(ErrorKind::Server, text)
}

/// The error for a user or password that the server refuses. `provided`: a credential provider of
/// the program gave them, not the URL.
pub fn log_in_refused(addr: &str, provided: bool) -> Error {
    let place = if provided {
        "check what the credential provider gives"
    } else {
        "check them in the URL"
    };
    let text = format!("{addr}: the server refused user name or password; {place}");
    Error::new(ErrorKind::Auth, text)
}

/// The error for an error reply.
pub fn refused(addr: &str, code: &str, detail: &str) -> Error {
    let refusal = wire::refusal(code, detail).0;
    Error::new(refusal.kind(), format!("{addr}: {}", refusal.message()))
}

/// A likely reason why a server cannot be reached.
#[derive(Debug, Clone, Copy)]
pub enum Doubt {
    NotRunning,
    /// Something answers without TLS, but not as Redis does.
    WantsTls,
    /// It closes the connection before it has said anything, as a TLS port does, and proxies that
    /// do not know the commands.
    Closes,
    /// This process or this machine has no descriptor, thread, memory or port left for now.
    Limits,
    /// The commands go over HTTP.
    NoHttp,
}

/// The error for a server that cannot be reached.
pub fn unreachable(addr: &str, why: &str, doubt: Doubt) -> Error {
    let question = match doubt {
        Doubt::NotRunning => "is a Redis server running there?",
        Doubt::WantsTls => "does it want TLS (rediss://)?",
        Doubt::Closes => {
            "it closes the connection when it is spoken to: does it want TLS (rediss://), or is it a proxy such as twemproxy, which carries no locks?"
        }
        Doubt::Limits => "raise the limits of this process",
        Doubt::NoHttp => "is Redis served over HTTP there (POST /pipeline)?",
    };
    let text = format!("cannot reach {addr}: {why}; {question}");
    Error::new(ErrorKind::Unavailable, text)
}

/// Why an encrypted connection was not made. A driver whose TLS is not Rust's tells the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFault {
    Other,
    Expired,
    NotYetValid,
    OtherHost,
    UnknownAuthority,
    Revoked,
    /// Anything else about the certificate of the server.
    Certificate,
    /// The server wants a certificate of the client.
    CertificateWanted,
    /// The server refuses the certificate of the client.
    CertificateRefused,
    NoTls,
}

impl TlsFault {
    const ALL: [TlsFault; 10] = [
        TlsFault::Other,
        TlsFault::Expired,
        TlsFault::NotYetValid,
        TlsFault::OtherHost,
        TlsFault::UnknownAuthority,
        TlsFault::Revoked,
        TlsFault::Certificate,
        TlsFault::CertificateWanted,
        TlsFault::CertificateRefused,
        TlsFault::NoTls,
    ];

    /// The value with this number; they are numbered from 0, in their order.
    pub fn from_number(number: u8) -> TlsFault {
        let known = Self::ALL.get(usize::from(number));
        known.copied().unwrap_or(TlsFault::Other)
    }

    pub fn kind(self) -> ErrorKind {
        match self {
            TlsFault::Other | TlsFault::NoTls => ErrorKind::Unavailable,
            _ => ErrorKind::Auth,
        }
    }

    /// The error about the server at this address, with the failure and its remedy.
    pub fn error(self, addr: &str, failure: &str) -> Error {
        let mut text = vec![format!("{addr}: TLS: {failure}; ").into()];
        text.extend(self.remedy());
        Error::with_names(self.kind(), text)
    }

    fn remedy(self) -> Vec<Piece> {
        let text = match self {
            TlsFault::Other => "see the server's log",
            TlsFault::Expired => "renew the server's certificate, or set this machine's clock",
            TlsFault::NotYetValid => "the certificate begins later; set this machine's clock",
            TlsFault::OtherHost => {
                "the certificate is for another host; write that host into the URL, or add this one to the certificate"
            }
            TlsFault::UnknownAuthority => {
                return vec![
                    "no authority that is trusted here has signed it; give ".into(),
                    Piece::Name("tls_ca"),
                    " the certificate of the one that has".into(),
                ];
            }
            TlsFault::Revoked => "renew the server's certificate",
            TlsFault::Certificate => "mend the server's certificate",
            TlsFault::CertificateWanted => {
                return vec![
                    "the server wants a certificate of the client; give ".into(),
                    Piece::Name("tls_cert"),
                    " and ".into(),
                    Piece::Name("tls_key"),
                ];
            }
            TlsFault::CertificateRefused => {
                return vec![
                    "the server refused the certificate in ".into(),
                    Piece::Name("tls_cert"),
                    "; give one of an authority that it trusts".into(),
                ];
            }
            TlsFault::NoTls => {
                "the server does not speak TLS; use its TLS port, or redis:// without TLS"
            }
        };
        vec![text.into()]
    }
}

/// Whether a refusal of `HELLO 3` means that the server does not know HELLO (before Redis 6, some
/// proxies) or RESP3.
pub fn refuses_hello(code: &str, detail: Option<&str>, with_password: bool) -> bool {
    match code {
        "NOPROTO" => true,
        "ERR" => detail.is_some_and(|detail| detail.starts_with("unknown command")),
        // Valkey also gives this reply to unknown commands. A server that knows `HELLO` does not
        // give it to one that carries a password.
        "NOAUTH" => with_password,
        _ => false,
    }
}

/// Whether an error reply refuses user name or password.
pub fn refuses_log_in(code: &str, detail: &str) -> bool {
    match code {
        "WRONGPASS" | "NOAUTH" => true,
        // Before Redis 6.
        "ERR" => detail.starts_with("invalid password"),
        _ => false,
    }
}

/// Whether an error reply to AUTH tells that the server asks for no password.
pub fn needs_no_password(code: &str, detail: &str) -> bool {
    code == "ERR" && detail.contains("without any password configured")
}

/// What is wrong with an answer that does not follow the protocol.
pub const NOT_REDIS: &str = "something answers there, but not as Redis does";

/// The reason why the server does not track keys, when it speaks RESP2.
pub const RESP2_ONLY: &str = "the server speaks RESP2 only";

/// The same over HTTP.
pub const HTTP_ONLY: &str = "nothing is pushed over HTTP";

/// The event for a server that does not track keys.
pub fn untracked(why: &str) -> Event {
    let text =
        format!("losses are noticed at renewals only, because the server does not track: {why}");
    Event::new("untracked", Level::Debug, None, text)
}

/// The event for a server that may evict locks.
pub fn evictable(addr: &str, policy: &str) -> Event {
    let text = format!(
        "{addr}: the server may take locks away when its memory is full (maxmemory-policy {policy}); set it \
         to noeviction, or keep locks on a server of their own"
    );
    Event::new("evictable", Level::Warn, None, text)
}

/// The event for messages that do not arrive.
pub fn unsubscribed(error: &dyn Display) -> Event {
    let text = format!("no wake-ups for now, waiters look by themselves: {error:#}");
    Event::new("unsubscribed", Level::Info, None, text)
}

/// Converts a server's clock (the reply to `TIME`) to milliseconds. A server may send any value.
pub fn millis_of((seconds, micros): (u64, u64)) -> u64 {
    seconds.saturating_mul(1000).saturating_add(micros / 1000)
}

/// The eviction policy in a reply to `INFO memory`, of a server with a memory limit, unless it is
/// `noeviction`. A lock has a time to live, so every other policy can evict it.
pub fn evicts(info: &str) -> Option<String> {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let (most, policy) = (field("maxmemory")?, field("maxmemory_policy")?);
    (most != "0" && policy != "noeviction").then(|| policy.to_owned())
}

/// Pauses between attempts: none at first, then exponential with jitter, up to a maximum.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause before the attempt that comes now; `random` spreads it.
    pub fn pause(&mut self, random: u32) -> Duration {
        let failures = self.failures;
        self.failures = failures.saturating_add(1);
        if failures == 0 {
            return Duration::ZERO;
        }
        let most = tuning::CONNECT_BACKOFF
            .1
            .min(tuning::CONNECT_BACKOFF.0 * 2u32.pow(failures.min(8) - 1));
        // Jitter over the upper half, so that many clients do not connect again at the same time.
        let share = random % 512;
        most / 2 + most * share / 1024
    }

    /// Notes that a connection has ended. After a short one the pauses continue, so that a server
    /// that accepts connections and drops them again is not asked in a loop.
    pub fn ended(&mut self, lasted: Duration) {
        if lasted >= tuning::GOOD_CONNECTION {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::Moment;
    use crate::outbox::server_clock::ServerClock;

    /// A very large time once made the I/O thread panic in builds with overflow checks (debug).
    #[test]
    fn a_server_may_tell_any_time() {
        assert_eq!(millis_of((1_795_369_635, 257_999)), 1_795_369_635_257);
        assert_eq!(millis_of((u64::MAX, u64::MAX)), u64::MAX);
        let clock = ServerClock::new(millis_of((u64::MAX, 0)), Moment(7));
        assert_eq!(
            clock.least(Moment(7).after(Duration::from_secs(9))),
            u64::MAX
        );
    }

    #[test]
    fn the_first_attempt_comes_at_once_and_later_ones_after_bounded_pauses() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(0x9e37_79b9), Duration::ZERO);
        let second = backoff.pause(0x9e37_79b9);
        assert!(
            (tuning::CONNECT_BACKOFF.0 / 2..=tuning::CONNECT_BACKOFF.0).contains(&second),
            "{second:?}"
        );
        let later: Vec<Duration> = (0..40).map(|_| backoff.pause(0x9e37_79b9)).collect();
        assert!(
            later
                .iter()
                .skip(4)
                .all(
                    |pause| (tuning::CONNECT_BACKOFF.1 / 2..=tuning::CONNECT_BACKOFF.1)
                        .contains(pause)
                ),
            "{later:?}"
        );
        backoff.ended(tuning::GOOD_CONNECTION / 2);
        assert_ne!(backoff.pause(0x9e37_79b9), Duration::ZERO);
        backoff.ended(tuning::GOOD_CONNECTION);
        assert_eq!(backoff.pause(0x9e37_79b9), Duration::ZERO);
    }
}
