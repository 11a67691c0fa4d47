//! The address of a server, as a URL. No error text shows a user name or password.

use redis::{ConnectionInfo, IntoConnectionInfo};

use crate::error::{Error, Result};

const FORM: &str = "redis://[user[:password]@]host[:port][/database] or unix:///path/to/socket";

/// Reads a URL.
///
/// # Errors
/// `invalid_argument` for anything but a Redis URL, and for what this version does not speak.
pub(crate) fn parse(url: &str) -> Result<ConnectionInfo> {
    let shown = redacted(url);
    match url.split_once("://").map_or("", |(scheme, _)| scheme) {
        "redis" | "redis+unix" | "unix" => {}
        scheme @ ("rediss" | "redis+sentinel" | "redis+cluster") => {
            return Err(Error::invalid(format!(
                "{shown:?}: this version does not speak {scheme}; use redis:// or unix://"
            )));
        }
        _ => return Err(Error::invalid(format!("{shown:?} is no Redis URL; write {FORM}"))),
    }
    // The parser's own errors may repeat parts of the URL.
    let info = url.into_connection_info().ok().filter(|info| info.redis_settings().db() >= 0);
    info.ok_or_else(|| {
        Error::invalid(format!(
            "the URL {shown:?} cannot be read; write {FORM}, with special characters of user name and \
             password percent-encoded"
        ))
    })
}

/// What of the URL can be shown: the scheme, and the address when it surely is one.
fn redacted(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(start);
    let (secret, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    let hidden = if secret.is_empty() { "" } else { "***@" };
    // With a question mark before the `@`, what looks like an address may be the end of a password.
    if secret.contains(['?', '#']) {
        return format!("{scheme}{hidden}***");
    }
    let place = place.split(['?', '#']).next().unwrap_or_default();
    match place.split_once(':') {
        // Without an `@`, what stands where the port should be may be a password.
        Some((host, port)) if !is_port(port) && !is_ipv6(place) => format!("{scheme}{hidden}{host}:***"),
        _ => format!("{scheme}{hidden}{place}"),
    }
}

fn is_port(text: &str) -> bool {
    text.split('/').next().is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_ipv6(place: &str) -> bool {
    let address = place.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    address.is_some_and(|(address, rest)| {
        address.parse::<std::net::Ipv6Addr>().is_ok() && is_port(rest.trim_start_matches(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn refused(url: &str) -> String {
        let error = parse(url).err().unwrap_or_else(|| panic!("{url} is accepted"));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    }

    #[test]
    fn what_a_url_says() {
        let info = parse("redis://app:s%40cret@db.example:6380/3").expect("a URL");
        assert_eq!(info.addr().to_string(), "db.example:6380");
        let settings = info.redis_settings();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("app"), Some("s@cret"), 3)
        );
        for good in
            ["redis://localhost", "redis://:pw@[::1]:6379/", "unix:///tmp/s", "redis+unix:///tmp/s?db=2"]
        {
            assert!(parse(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_bad_url_is_refused_without_showing_its_secret() {
        for bad in [
            "http://u:geheim@h",
            "redis://u:geheim@h:port",
            "redis://u:geheim@",
            "redis://:geheim@[::1",
            "geheim@h",
            "u:geheim@h:6379",
            "rediss://:geheim@h",
            "redis+sentinel://:geheim@h/main",
            "redis://h/x?password=geheim",
            "redis://h/-1#geheim",
            "redis://u:ge?heim@h:x",
            "redis://u:x#geheim@h:x",
            "redis://:geheim",
            "redis://u:geheim",
            "redis://u:x:geheim",
            "redis://u:a/geheim@h",
            "foo:///tmp/s?pass=x@geheim",
        ] {
            let text = refused(bad);
            assert!(!text.contains("geheim") && !text.contains("heim"), "{bad}: {text}");
        }
    }

    #[test]
    fn a_bad_url_is_shown_as_far_as_it_helps() {
        assert!(refused("").contains("\"\" is no Redis URL"));
        assert!(refused("localhost:6379").contains("\"localhost:6379\" is no Redis URL"));
        assert!(
            refused("rediss://me:pw@db:6380/1")
                .contains("\"rediss://***@db:6380/1\": this version does not speak")
        );
        assert!(refused("redis://db/one").contains("\"redis://db/one\" cannot be read"));
        assert!(refused("redis://[::1]:6379/x").contains("redis://[::1]:6379/x"));
        assert!(refused("redis://").contains("cannot be read; write redis://[user"));
    }
}
