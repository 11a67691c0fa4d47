//! The primary of a service that sentinels watch: which server to try, and when it has changed. A
//! driver has the connections.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;
use crate::value::Value;

/// The channel on which a sentinel announces the new primary of a service.
pub const SWITCH: &str = "+switch-master";

/// A service that sentinels watch.
pub struct Service {
    name: String,
    /// The primary that was replaced last, until its successor is reached. A sentinel that lags
    /// behind still names it, and for a moment it still reports the role of primary.
    deposed: Option<Host>,
}

impl Service {
    pub fn new(name: String) -> Self {
        Service {
            name,
            deposed: None,
        }
    }

    /// The command that asks a sentinel for the primary.
    pub fn question(&self) -> [&str; 3] {
        ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name]
    }

    /// Reads an announcement, `service old-host old-port new-host new-port`. Returns true if it is
    /// about this service.
    pub fn heed(&mut self, announcement: &str) -> bool {
        let words: Vec<&str> = announcement.split(' ').collect();
        let [service, host, port, _, _] = words.as_slice() else {
            return false;
        };
        if *service != self.name {
            return false;
        }
        self.deposed = port.parse().ok().map(|port| Host {
            name: (*host).to_owned(),
            port,
        });
        true
    }

    /// Rules no server out any more: the primary is reached, or announcements may have been missed.
    pub fn trust_all(&mut self) {
        self.deposed = None;
    }

    /// The error when no primary was reached in time.
    pub fn late(&self, limit: Duration) -> Error {
        let text = format!(
            "service {:?}: no primary was reached within {limit:?}; do the sentinels run, and the server that they \
             name?",
            self.name
        );
        Error::new(ErrorKind::Unavailable, text)
    }
}

/// One search for the primary. All sentinels are asked at the same time, so that a silent one costs
/// nothing. A server that is named is believed if it reports the role of primary itself.
#[derive(Default)]
pub struct Search {
    named: Vec<Host>,
    /// How many sentinels do not know the service.
    unknown: usize,
    failures: Vec<Error>,
}

impl Search {
    /// Takes the answer of a sentinel. Returns the server to try, if there is a new one.
    pub fn named(&mut self, service: &Service, answer: Result<Option<Host>>) -> Option<Host> {
        match answer {
            Ok(Some(host)) if self.named.contains(&host) => {}
            Ok(Some(host)) if service.deposed.as_ref() == Some(&host) => {
                let text = "a sentinel still names the primary that was replaced; asking again";
                self.failures.push(Error::new(ErrorKind::Unavailable, text));
            }
            Ok(Some(host)) => {
                self.named.push(host.clone());
                return Some(host);
            }
            Ok(None) => self.unknown += 1,
            Err(error) => self.failures.push(error),
        }
        None
    }

    /// A server that was named cannot be used. Its error explains more than that of an unreachable
    /// sentinel, so it comes first.
    pub fn failed(&mut self, error: Error) {
        self.failures.insert(0, error);
    }

    /// The error when nobody is left to be asked: `invalid_argument` if all sentinels have answered
    /// and none knows the service.
    pub fn not_found(self, service: &Service) -> Error {
        let (name, unknown) = (&service.name, self.unknown);
        let Some(error) = self.failures.into_iter().next() else {
            let text = format!(
                "no sentinel watches a service named {name:?}; write the name of `sentinel monitor` behind the \
                 hosts in the URL"
            );
            return Error::new(ErrorKind::InvalidArgument, text);
        };
        let text = match unknown {
            0 => format!("service {name:?}: {}", error.message()),
            _ => format!(
                "service {name:?}: {unknown} of the sentinels do not know it; {}",
                error.message()
            ),
        };
        error.reworded(text)
    }
}

/// Reads the answer of the sentinel at `addr`: the primary, or `None` if it does not know the
/// service.
///
/// # Errors
/// `unavailable` for anything else.
pub fn primary_of(addr: &str, answer: &Value) -> Result<Option<Host>> {
    let text = |value: &Value| match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    };
    let host = match answer {
        Value::Nil => return Ok(None),
        Value::Array(parts) => match parts.as_slice() {
            [name, port] => text(name).zip(text(port).and_then(|port| port.parse().ok())),
            _ => None,
        },
        _ => None,
    };
    match host {
        Some((name, port)) => Ok(Some(Host { name, port })),
        None => {
            let text =
                format!("{addr} does not answer as a sentinel does; check the address in the URL");
            Err(Error::new(ErrorKind::Unavailable, text))
        }
    }
}

/// Checks that the server at `addr` reports the role of primary, by its answer to `ROLE`.
///
/// # Errors
/// `unavailable` if it does not.
pub fn check_role(addr: &str, role: &Value) -> Result<()> {
    match role {
        Value::Array(role) if role.first() == Some(&Value::BulkString(b"master".to_vec())) => {
            Ok(())
        }
        _ => {
            let text = format!("{addr} is no primary yet, or not any more; asking again");
            Err(Error::new(ErrorKind::Unavailable, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        Host {
            name: name.to_owned(),
            port: 6379,
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_server_that_several_sentinels_name_is_tried_once() {
        let service = Service::new("main".to_owned());
        let mut search = Search::default();
        assert_eq!(search.named(&service, Ok(Some(host("a")))), Some(host("a")));
        assert_eq!(search.named(&service, Ok(Some(host("a")))), None);
        assert_eq!(search.named(&service, Ok(Some(host("b")))), Some(host("b")));
    }

    #[test]
    fn the_primary_that_was_replaced_is_not_tried_until_another_is_reached() {
        let mut service = Service::new("main".to_owned());
        assert!(!service.heed("other a 6379 b 6379") && !service.heed("main a 6379"));
        assert!(service.heed("main a 6379 b 6379"));
        let mut search = Search::default();
        assert_eq!(search.named(&service, Ok(Some(host("a")))), None);
        assert_eq!(search.named(&service, Ok(Some(host("b")))), Some(host("b")));
        let error = search.not_found(&service);
        assert!(error.message().contains("still names"), "{error}");
        service.trust_all();
        let mut search = Search::default();
        assert_eq!(search.named(&service, Ok(Some(host("a")))), Some(host("a")));
    }

    #[test]
    fn the_error_of_a_server_comes_before_that_of_a_sentinel() {
        let service = Service::new("main".to_owned());
        let error = |text: &str| Error::new(ErrorKind::Unavailable, text);
        let mut search = Search::default();
        search.named(&service, Err(error("no sentinel there")));
        search.named(&service, Ok(None));
        search.failed(error("no server there"));
        let told = search.not_found(&service);
        assert_eq!(
            (told.kind(), told.message()),
            (
                ErrorKind::Unavailable,
                "service \"main\": 1 of the sentinels do not know it; no server there"
            )
        );
        let mut search = Search::default();
        search.named(&service, Ok(None));
        let told = search.not_found(&service);
        assert_eq!(told.kind(), ErrorKind::InvalidArgument);
        assert!(told.message().contains("\"main\""), "{told}");
    }

    #[test]
    fn answers_are_read() {
        let named = |answer: Value| primary_of("s:1", &answer).map_err(|error| error.kind());
        let place = Value::Array(vec![text("10.0.0.7"), text("6379")]);
        assert_eq!(named(place), Ok(Some(host("10.0.0.7"))));
        // Sentinels behind a proxy or of another make.
        let word = Value::SimpleString("10.0.0.7".to_owned());
        let place = Value::Array(vec![word, Value::Int(6379)]);
        assert_eq!(named(place), Ok(Some(host("10.0.0.7"))));
        assert_eq!(named(Value::Nil), Ok(None));
        for odd in [
            Value::Array(vec![text("10.0.0.7")]),
            Value::Array(vec![text("10.0.0.7"), text("70000")]),
            Value::Int(1),
        ] {
            assert_eq!(named(odd), Err(ErrorKind::Unavailable));
        }
        let role = |word: &str| check_role("h:1", &Value::Array(vec![text(word), Value::Int(0)]));
        assert!(role("master").is_ok() && role("slave").is_err());
        assert!(check_role("h:1", &Value::Nil).is_err());
    }
}
