//! The URL of a server or of a set of servers. No error text contains a user name or password.

use std::fmt;

use crate::error::{Error, Result};

/// The most characters of a URL that an error repeats.
const LONGEST_SHOWN: usize = 200;
/// The environment variable that holds the URL when none is given.
pub const VARIABLE: &str = "REDLATCH_URL";

/// How the URL of one server is written, for people.
pub const SYNTAX: &str = "redis://[user[:password]@]host[:port][/database] (rediss:// for TLS) or unix:///path/to/socket";

const REDIS: u16 = 6379;
const SENTINEL: u16 = 26379;
const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// The addresses of the servers, and the user and password to log in with.
#[derive(Clone)]
pub struct Place {
    pub topology: Topology,
    /// The address of the one server, or of the first of several hosts (which may be a sentinel).
    pub at: At,
    /// User, password and database for every server that keeps locks.
    pub server: Login,
    /// User and password for the sentinels.
    pub sentinel: Login,
    /// Whether every connection is encrypted; otherwise none is.
    pub tls: bool,
    /// Whether commands go over HTTP. The password is the token then.
    pub http: bool,
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    Tcp(Host),
    /// The path of a Unix socket.
    Unix(String),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Tcp(Host { name, port }) => write!(f, "{name}:{port}"),
            At::Unix(path) => f.write_str(path),
        }
    }
}

/// How to log in at a server. It has no `Debug`, because nothing may print it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub user: Option<String>,
    pub password: Option<String>,
    pub database: u32,
}

/// How the servers are arranged.
#[derive(Debug, Clone, PartialEq)]
pub enum Topology {
    /// One server.
    Single,
    /// Sentinels that know the primary of a service.
    Sentinel { hosts: Vec<Host>, service: String },
    /// The nodes of a cluster to start from.
    Cluster { hosts: Vec<Host> },
    /// Servers that know nothing of each other: a lock is held while most of them have it. Their
    /// number is odd, at least three.
    Quorum { hosts: Vec<Host> },
}

/// A host name or IP address, without brackets, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    pub name: String,
    pub port: u16,
}

/// Reads the value of the environment variable [`VARIABLE`] by [`parse`] or [`parse_for_sockets`].
///
/// # Errors
/// `invalid_argument` when there is none; else as those.
pub fn from_env(value: Option<&str>, parse: fn(&str) -> Result<Place>) -> Result<Place> {
    let Some(url) = value.filter(|url| !url.is_empty()) else {
        return Err(Error::invalid(format!(
            "no URL was given, and the environment variable {VARIABLE} has none; set it, for example to \
             redis://localhost:6379"
        )));
    };
    parse(url).map_err(|error| Error::invalid(format!("{VARIABLE}: {}", error.message())))
}

/// Reads a URL, for a driver that has sockets and no HTTP.
///
/// # Errors
/// `invalid_argument` for anything but a Redis URL, and for one of HTTP.
pub fn parse_for_sockets(url: &str) -> Result<Place> {
    if !["http://", "https://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return parse(url);
    }
    Err(Error::invalid(format!(
        "the URL {:?} is one of Redis over HTTP, which only the WebAssembly part of the npm package speaks \
         (REDLATCH_WASM=1); write {} here",
        redacted(url),
        Form::Single.text()
    )))
}

/// Reads a URL.
///
/// # Errors
/// `invalid_argument` for anything but a Redis URL.
pub fn parse(url: &str) -> Result<Place> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let form = match scheme {
        "unix" | "redis+unix" => Form::Unix,
        "redis" | "rediss" => Form::Single,
        "redis+sentinel" | "rediss+sentinel" => Form::Sentinel,
        "redis+cluster" | "rediss+cluster" => Form::Cluster,
        "redis+quorum" | "rediss+quorum" => Form::Quorum,
        "http" | "https" => Form::Http,
        _ => {
            let shown = redacted(url);
            return Err(Error::invalid(format!(
                "{shown:?} is no Redis URL; write {}",
                Form::Single.text()
            )));
        }
    };
    let place = match form {
        Form::Unix => unix(rest),
        form => read(
            form,
            matches!(scheme, "https") || scheme.starts_with("rediss"),
            rest,
        ),
    };
    place.map_err(|part| {
        Error::invalid(format!(
            "the URL {:?} cannot be read: {part}; write {}, with special characters of user name and password \
             percent-encoded",
            redacted(url),
            form.text()
        ))
    })
}

/// The URLs of the servers of a quorum, each by itself, if this is the URL of one.
pub fn each_of_quorum(url: &str) -> Option<Vec<String>> {
    let (scheme, rest) = url.split_once("+quorum://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let each = |host| format!("{scheme}://{login}{host}{path}");
    Some(hosts.split(',').map(each).collect())
}

/// The error in a URL. The text repeats no part of it, because any part may be a secret.
type Wrong = &'static str;

const HOST: Wrong = "a host is missing, or has characters that no host name or address has";
const PORT: Wrong = "a port is no number from 1 to 65535";
const DATABASE: Wrong = "the database, behind the slash, is no number";
const LOGIN: Wrong = "user name or password have a % that is no percent-encoding";
const EVEN: Wrong = "a quorum has an odd number of servers, at least three: an even one stands no more failures than one less";
const TWICE: Wrong = "a server is named twice: its vote would count twice";
const MANY: Wrong = "a quorum has at most 15 servers";
const BARE: Wrong = "HTTP has a token, as the password, but no user name and no database";
const SPECIAL: Wrong = "an @ or # stands where none can be";

/// The syntax of what follows the scheme.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Unix,
    Single,
    Sentinel,
    Cluster,
    Quorum,
    Http,
}

impl Form {
    /// The syntax, for people.
    fn text(self) -> &'static str {
        match self {
            Form::Unix | Form::Single => SYNTAX,
            Form::Sentinel => {
                "redis+sentinel://[user[:password]@]host[:port],.../service[/database] (rediss+sentinel:// \
                 for TLS), with ?sentinel_user=...&sentinel_password=... where sentinels ask for them"
            }
            Form::Cluster => {
                "redis+cluster://[user[:password]@]host[:port],... (rediss+cluster:// for TLS)"
            }
            Form::Quorum => {
                "redis+quorum://[user[:password]@]host[:port],host[:port],host[:port][,...][/database] \
                 (rediss+quorum:// for TLS)"
            }
            Form::Http => "https://:TOKEN@host[:port] (http:// without TLS)",
        }
    }

    /// The port where the URL has none.
    fn port(self, tls: bool) -> u16 {
        match (self, tls) {
            (Form::Sentinel, _) => SENTINEL,
            (Form::Http, true) => HTTPS,
            (Form::Http, false) => HTTP,
            _ => REDIS,
        }
    }
}

/// Reads what follows `unix://`: a path, and user, password and database behind a question mark.
fn unix(rest: &str) -> Result<Place, Wrong> {
    const UNIX: Wrong = "the path of the socket is missing, or what stands behind it is not known";
    let rest = rest.split('#').next().unwrap_or_default();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    // Else `unix:///s,password=...` would be a path, which errors show.
    if path.contains('=') {
        return Err(UNIX);
    }
    let path = decoded(path)
        .filter(|path| path.starts_with('/'))
        .ok_or(UNIX)?;
    let mut login = Login::default();
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        // A query has forms of its own: a space is a plus.
        let value = || decoded(&value.replace('+', " ")).ok_or(UNIX);
        match key {
            "user" => login.user = Some(value()?),
            "pass" => login.password = Some(value()?),
            "db" => login.database = value()?.parse().map_err(|_| UNIX)?,
            _ => {}
        }
    }
    Ok(Place {
        topology: Topology::Single,
        at: At::Unix(path),
        server: login,
        sentinel: Login::default(),
        tls: false,
        http: false,
    })
}

/// Reads what follows `scheme://`.
fn read(form: Form, tls: bool, rest: &str) -> Result<Place, Wrong> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    // An `@` after the authority comes from a password that is not percent-encoded; then the host
    // would be a part of that password. Fragments have no meaning and are refused, `#insecure`
    // above all.
    if [path, query].iter().any(|part| part.contains('@'))
        || rest.contains('#')
        || query.contains('#')
    {
        return Err(SPECIAL);
    }
    let hosts = hosts
        .split(',')
        .map(|text| host(text, form.port(tls)))
        .collect::<Result<Vec<Host>, Wrong>>()?;
    let (service, database) = match form {
        Form::Sentinel => path.split_once('/').unwrap_or((path, "")),
        _ => ("", path),
    };
    let at = At::Tcp(hosts.first().ok_or(HOST)?.clone());
    let topology = topology(form, hosts, service)?;
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let http = form == Form::Http;
    if http && !(user.is_empty() && path.is_empty()) {
        return Err(BARE);
    }
    let database = number(database).ok_or(DATABASE)?;
    let server = Login {
        database,
        ..login_of(user, password)?
    };
    let sentinel = if form == Form::Sentinel {
        sentinel_settings(query)?
    } else {
        none(query)?
    };
    Ok(Place {
        topology,
        at,
        server,
        sentinel,
        tls,
        http,
    })
}

fn topology(form: Form, hosts: Vec<Host>, service: &str) -> Result<Topology, Wrong> {
    let is_again = |(at, host): (usize, &Host)| hosts[..at].contains(host);
    match form {
        Form::Sentinel if is_service(service) => {
            let service = service.to_owned();
            Ok(Topology::Sentinel { hosts, service })
        }
        Form::Cluster => Ok(Topology::Cluster { hosts }),
        Form::Quorum => match hosts.len() {
            _ if hosts.iter().enumerate().any(is_again) => Err(TWICE),
            16.. => Err(MANY),
            3.. if hosts.len() % 2 == 1 => Ok(Topology::Quorum { hosts }),
            _ => Err(EVEN),
        },
        Form::Single | Form::Http if hosts.len() == 1 => Ok(Topology::Single),
        Form::Sentinel => {
            Err("the name of the service, behind the first slash, is missing or has odd characters")
        }
        Form::Single | Form::Http | Form::Unix => Err("there are several hosts"),
    }
}

/// Only sentinel URLs have a query.
fn none(query: &str) -> Result<Login, Wrong> {
    let unwanted = "a question mark and what stands behind it are not taken here (options are given to the client)";
    query.is_empty().then(Login::default).ok_or(unwanted)
}

fn host(text: &str, port_otherwise: u16) -> Result<Host, Wrong> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(HOST)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| HOST)?;
            (address, port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        None if !port.is_empty() => return Err(HOST),
        None | Some("") => port_otherwise,
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(PORT)?,
    };
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte));
    is_name
        .then(|| Host {
            name: name.to_owned(),
            port,
        })
        .ok_or(HOST)
}

/// Whether this is a valid service name: only the characters that Sentinel allows.
fn is_service(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// The number of the database; the default is 0.
fn number(text: &str) -> Option<u32> {
    match text.strip_suffix('/').unwrap_or(text) {
        "" => Some(0),
        digits => digits.parse().ok(),
    }
}

fn login_of(user: &str, password: &str) -> Result<Login, Wrong> {
    let given = |text: &str| match text {
        "" => Ok(None),
        text => decoded(text).map(Some).ok_or(LOGIN),
    };
    Ok(Login {
        user: given(user)?,
        password: given(password)?,
        database: 0,
    })
}

fn sentinel_settings(query: &str) -> Result<Login, Wrong> {
    let (mut user, mut password) = ("", "");
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            _ => {
                return Err(
                    "behind the question mark only sentinel_user and sentinel_password are known",
                );
            }
        }
    }
    login_of(user, password)
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (code, plain) = piece.split_at_checked(2)?;
        if !code.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(plain.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// The part of the URL that an error may show, at most [`LONGEST_SHOWN`] characters.
fn redacted(url: &str) -> String {
    let shown = without_secrets(url);
    match shown.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{}...", &shown[..end]),
        None => shown,
    }
}

/// The scheme, and the address as far as it surely contains no secret: a password may stand anywhere
/// in a text that is no URL of ours, as in `host:6380,password=...,ssl=True`.
fn without_secrets(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(start);
    if !has_only(scheme.trim_end_matches("://"), "+.-") {
        return "***".to_owned();
    }
    let (secret, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    let hidden = if secret.is_empty() { "" } else { "***@" };
    // With one of these before the `@`, or without a scheme, the apparent address may be the end of
    // a password.
    if scheme.is_empty() && !secret.is_empty()
        || secret.contains(['?', '#', '/', ',', ';', '&', '='])
        || secret.contains(char::is_whitespace)
    {
        return format!("{scheme}***");
    }
    let place = place.split(['?', '#']).next().unwrap_or_default();
    let (hosts, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let mut shown = format!("{scheme}{hidden}");
    for (number, host) in hosts.split(',').enumerate() {
        if number > 0 {
            shown.push(',');
        }
        let (name, port) = host.split_once(':').unwrap_or((host, ""));
        if is_ipv6(host) || has_only(name, "-._") && is_digits(port) {
            shown.push_str(host);
        } else if has_only(name, "-._") {
            // Without an `@`, the apparent port may be a password.
            return format!("{shown}{name}:***");
        } else {
            return format!("{shown}***");
        }
    }
    shown + if has_only(path, "-._/") { path } else { "/***" }
}

/// Whether the text has letters and digits of ASCII only, and these characters.
fn has_only(text: &str, others: &str) -> bool {
    text.chars()
        .all(|one| one.is_ascii_alphanumeric() || others.contains(one))
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_ipv6(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    address.is_some_and(|(address, port)| {
        address.parse::<std::net::Ipv6Addr>().is_ok()
            && is_digits(port.strip_prefix(':').unwrap_or(port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn refused(url: &str) -> String {
        let error = parse(url)
            .err()
            .unwrap_or_else(|| panic!("{url} is accepted"));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    }

    fn read(url: &str) -> Place {
        parse(url).unwrap_or_else(|error| panic!("{error}"))
    }

    fn host(name: &str, port: u16) -> Host {
        Host {
            name: name.to_owned(),
            port,
        }
    }

    /// User, password, database.
    fn told(login: &Login) -> (Option<&str>, Option<&str>, u32) {
        let Login {
            user,
            password,
            database,
        } = login;
        (user.as_deref(), password.as_deref(), *database)
    }

    #[test]
    fn a_quorum_is_several_servers() {
        let each = each_of_quorum("rediss+quorum://u:p%40@a:1,b,[::1]:3/2").unwrap_or_default();
        let wanted = ["a:1", "b", "[::1]:3"].map(|host| format!("rediss://u:p%40@{host}/2"));
        assert_eq!(each, wanted);
        assert_eq!(each_of_quorum("redis+cluster://a,b"), None);
    }

    #[test]
    fn a_refused_url_is_repeated_in_part_only() {
        let text = refused(&format!("redis://{}:port", "host.".repeat(1000)));
        assert!(text.contains("...\"") && text.len() < 1000, "{text}");
    }

    #[test]
    fn a_url_names_server_user_and_database() {
        for (url, expected) in [
            (
                "redis://app:s%40cret@db.example:6380/3",
                ("db.example:6380", Some("app"), Some("s@cret"), 3),
            ),
            ("redis://localhost", ("localhost:6379", None, None, 0)),
            (
                "redis://:pw:%3A@[::1]/",
                ("::1:6379", None, Some("pw::"), 0),
            ),
            ("redis://%C3%BC@h:/0", ("h:6379", Some("ü"), None, 0)),
            ("unix:///tmp/s", ("/tmp/s", None, None, 0)),
            (
                "redis+unix:///tmp/s?db=2&user=u&pass=p",
                ("/tmp/s", Some("u"), Some("p"), 2),
            ),
        ] {
            let place = read(url);
            assert_eq!(place.topology, Topology::Single, "{url}");
            let (user, password, db) = told(&place.server);
            let at = place.at.to_string();
            assert_eq!((&*at, user, password, db), expected, "{url}");
            assert!(!place.tls, "{url}");
        }
        assert!(read("rediss://h").tls);
        assert!(matches!(&read("unix:///a%20b").at, At::Unix(path) if path == "/a b"));
    }

    #[test]
    fn a_sentinel_url_names_service_and_sentinels() {
        let place = read(
            "redis+sentinel://app:p%2Fw@a,b:1,[::1]/the-main/2?sentinel_user=s&sentinel_password=%26%40+x",
        );
        let hosts = vec![host("a", 26379), host("b", 1), host("::1", 26379)];
        assert_eq!(
            place.topology,
            Topology::Sentinel {
                hosts,
                service: "the-main".to_owned()
            }
        );
        assert_eq!(told(&place.server), (Some("app"), Some("p/w"), 2));
        assert_eq!(told(&place.sentinel), (Some("s"), Some("&@+x"), 0));
        assert!(!place.tls);

        let place = read("rediss+sentinel://:p@a/main");
        assert!(place.tls);
        // The sentinels do not get the password of the servers.
        assert_eq!(told(&place.sentinel), (None, None, 0));
    }

    #[test]
    fn a_cluster_url_names_its_nodes() {
        let place = read("rediss+cluster://:pw@a,b:7000");
        assert_eq!(
            place.topology,
            Topology::Cluster {
                hosts: vec![host("a", 6379), host("b", 7000)]
            }
        );
        assert!(place.tls && !read("redis+cluster://a").tls);
        assert_eq!(told(&place.server), (None, Some("pw"), 0));
    }

    #[test]
    fn a_url_of_http_has_a_token() {
        for (url, expected) in [
            ("https://name.example", ("name.example:443", None, true)),
            ("https://:T%3D@h/", ("h:443", Some("T="), true)),
            (
                "http://:t@127.0.0.1:8079",
                ("127.0.0.1:8079", Some("t"), false),
            ),
            ("http://h", ("h:80", None, false)),
        ] {
            let place = read(url);
            let (user, password, db) = told(&place.server);
            let at = place.at.to_string();
            assert_eq!((&*at, password, place.tls), expected, "{url}");
            assert_eq!((user, db, place.http), (None, 0, true), "{url}");
            assert_eq!(place.topology, Topology::Single, "{url}");
        }
        assert!(!read("rediss://h").http && !read("unix:///s").http);
    }

    #[test]
    fn a_driver_without_http_says_which_one_has_it() {
        assert!(parse_for_sockets("redis://h").is_ok());
        for url in ["https://:geheim@h", "http://u:geheim@h/1"] {
            let text = parse_for_sockets(url).err().unwrap().message().to_owned();
            assert!(text.contains("REDLATCH_WASM=1") && text.contains("***@h"));
            assert!(!text.contains("geheim"), "{text}");
        }
    }

    #[test]
    fn a_bad_url_is_refused_without_showing_its_secret() {
        for bad in [
            "http://u:geheim@h",
            "https://geheim@h",
            "https://:geheim@h/0",
            "https://:geheim@h,h",
            "https://:geheim",
            "redis://u:geheim@h:port",
            "redis://u:geheim@",
            "redis://:geheim@[::1",
            "geheim@h",
            "u:geheim@h:6379",
            "rediss://:geheim@h#insecure",
            "redis://h/x?password=geheim",
            "redis://h/-1#geheim",
            "redis://u:ge?heim@h:x",
            "redis://u:ge?heim@h",
            "redis://u:12/geheim@h",
            "redis://u:12?geheim@h",
            "redis://u:x#geheim@h:x",
            "redis://:geheim",
            "redis://u:geheim",
            "redis://u:x:geheim",
            "redis://u:a/geheim@h",
            "redis://u:geheim%@h",
            "redis://u:geheim%zz@h",
            "redis://u:geheim%ff@h",
            "redis://u:geheim@a,b",
            "redis+sentinel://:geheim@h",
            "redis+sentinel://:geheim@h/",
            "redis+sentinel://:geheim@h/main/x",
            "redis+sentinel://:geheim@/main",
            "redis+sentinel://:geheim@a,,b/main",
            "redis+sentinel://u:12/geheim@h/main",
            "redis+sentinel://a,u:geheim,b/main",
            "redis+sentinel://h/main?password=geheim",
            "redis+sentinel://h/main?sentinel_password=geheim@",
            "redis+cluster://u:geheim,heim",
            "redis+cluster://:geheim@h/1/2",
            "foo:///tmp/s?pass=x@geheim",
        ] {
            let text = refused(bad);
            assert!(
                !text.contains("geheim") && !text.contains("heim"),
                "{bad}: {text}"
            );
        }
    }

    /// A secret in each place of each form that people write, or paste from elsewhere: none of the
    /// texts has it, nor its end behind an `@`. A form may be a good URL, if its secret is no host.
    #[test]
    fn no_form_shows_a_secret() {
        const SECRETS: &[&str] = &[
            "geheim",
            "ge@heim",
            "ge:heim",
            "ge/heim",
            "ge=heim",
            "ge,heim",
            "ge heim",
            "ge?heim",
            "ge#heim",
            "ge;heim",
            "ge&heim",
            "ge%heim",
            "géheim",
            "ge\nheim",
            "ge://heim",
            "heim==",
        ];
        const FORMS: &[&str] = &[
            "h.redis.cache.windows.net:6380,password=S,ssl=True,abort=False",
            "h:6380,ssl=True,password=S",
            "h,password=S",
            "host=h;password=S",
            "host=h;password=S;port=6379",
            "host=h password=S",
            "server=h,6379;Password=S;",
            "password=S,h:6379",
            "password=S",
            "h 6379 S",
            "h:6379:S",
            "h:6379 -a S",
            "-h h -a S",
            "redis-cli -h h -a S -p 6379",
            "redis-cli -u redis://u:S@h",
            "{\"host\":\"h\",\"password\":\"S\"}",
            "export URL=redis://u:S@h",
            "\"redis://u:S@h:x\"",
            "'redis://u:S@h:x'",
            " redis://u:S@h:x",
            "redis:u:S@h",
            "redis:/u:S@h",
            "u:S@h:6379",
            ":S@h:6379",
            "S@h:6379/0",
            "u:S://u:S@h",
        ];
        const PLACES: &[&str] = &[
            "h:6379,password=S",
            "h:6379/0,password=S",
            "h:6379/0&password=S",
            "h:6379/0;password=S",
            "h:6379/0 password=S",
            "h:6379/password=S",
            "h:6379?password=S",
            "h:6379/0?password=S",
            "h:6379/main?password=S",
            "h:6379&password=S",
            "h:6379;password=S",
            "h:6379 S",
            "h:6379/0#S",
            "h,password:S",
            "h:S",
            "u:S",
            ":S",
            "u:S@",
            "u:S@h:x",
            "u:S@h/x/y/z",
            "u:S@h,,h",
            "u:S@h o",
            "u:S@h?x=S",
            "a,u:S@b:x,c",
            "a,b:x,c,password=S",
            "password=S@h:x",
            "password=S",
            "/tmp/s,password=S",
            "/tmp/s;password=S",
            "/tmp/s&pass=S",
            "/tmp/s?db=x&pass=S",
            "tmp/s?pass=S",
        ];
        let schemes = [
            "redis",
            "rediss",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "redis+quorum",
            "unix",
            "redis+unix",
            "http",
            "https",
            "Redis",
            "postgres",
            "",
        ];
        let full = |scheme: &&str| {
            PLACES
                .iter()
                .map(move |place| format!("{scheme}://{place}"))
                .collect::<Vec<_>>()
        };
        let forms = FORMS
            .iter()
            .map(|form| (*form).to_owned())
            .chain(schemes.iter().flat_map(full));
        let mut refused = 0;
        for form in forms {
            for secret in SECRETS {
                let url = form.replace('S', secret);
                for parse in [parse, parse_for_sockets] {
                    let text = match parse(&url) {
                        Ok(place) => format!("{:?} {}", place.topology, place.at),
                        Err(error) => {
                            refused += 1;
                            error.message().to_owned()
                        }
                    };
                    // A URL without a host, whose secret ends like one: `redis://u:ge@heim`.
                    let is_host = *secret == "ge@heim" && form.ends_with('S');
                    assert!(
                        is_host || !text.contains("heim") && !text.contains("geh"),
                        "{url:?}: {text}"
                    );
                }
            }
        }
        assert!(refused > 10_000, "{refused}");
    }

    #[test]
    fn the_part_that_is_wrong_is_named() {
        for (bad, part) in [
            ("redis://127.0.0.1:1/0?x=1", "question mark"),
            ("redis://h:99999", "port"),
            ("redis://h:0", "port"),
            ("redis://h/abc", "database"),
            ("redis://h o", "host"),
            ("redis://", "host"),
            ("redis://a,b", "several hosts"),
            ("redis://u:%zz@h", "percent-encoding"),
            ("redis://h/0#x", "#"),
            ("redis+sentinel://h", "name of the service"),
            ("redis+sentinel://h/main?x=1", "sentinel_user"),
            ("redis+cluster://h/one", "database"),
            ("https://token@h", "user name"),
            ("https://:token@h/1", "no database"),
            ("https://a,b", "several hosts"),
        ] {
            let text = refused(bad);
            let said = text
                .split_once("cannot be read: ")
                .and_then(|(_, rest)| rest.split_once("; write"));
            assert!(
                said.is_some_and(|(said, _)| said.contains(part)),
                "{bad}: {text}"
            );
        }
    }

    #[test]
    fn a_bad_url_is_shown_as_far_as_it_helps() {
        assert!(refused("").contains("\"\" is no Redis URL"));
        assert!(refused("localhost:6379").contains("\"localhost:6379\" is no Redis URL"));
        assert!(refused("redis://db/one").contains("\"redis://db/one\" cannot be read"));
        assert!(refused("redis://[::1]:6379/x").contains("redis://[::1]:6379/x"));
        assert!(refused("redis://").contains("; write redis://[user"));
        assert!(refused("rediss+sentinel://me:pw@a:1,[::1]:2/").contains(
            "\"rediss+sentinel://***@a:1,[::1]:2/\" cannot be read: the name of the service"
        ));
        assert!(
            refused("redis+cluster://a:1,b:x,c").contains("\"redis+cluster://a:1,b:***\" cannot")
        );
    }
}
