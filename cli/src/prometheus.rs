//! Gives metrics away: over HTTP, or in a file.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use crate::arguments::Watch;
use crate::failure::{Exit, Failure};

/// How long a reader may take for its request, and for its reading.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest request. Prometheus sends some hundred bytes.
const LONGEST_REQUEST: usize = 8192;
/// The exposition format.
const CONTENT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The newest page, and where it goes.
pub(crate) struct Exporter {
    page: Option<Arc<Mutex<String>>>,
    file: Option<PathBuf>,
}

impl Exporter {
    pub(crate) fn open(arguments: &Watch) -> Result<Self, Failure> {
        let page = arguments.prometheus.map(serve).transpose()?;
        Ok(Exporter {
            page,
            file: arguments.prometheus_file.clone(),
        })
    }

    pub(crate) fn is_used(&self) -> bool {
        self.page.is_some() || self.file.is_some()
    }

    pub(crate) fn publish(&self, text: String) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            replace(file, &text).map_err(|error| {
                let text = format!("cannot write --prometheus-file {}: {error}", file.display());
                Failure::new(Exit::Usage, text)
            })?;
        }
        if let Some(page) = &self.page {
            *page.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
        Ok(())
    }
}

/// A page that a thread gives to everybody who connects to this address.
fn serve(address: SocketAddr) -> Result<Arc<Mutex<String>>, Failure> {
    let listener = TcpListener::bind(address).map_err(|error| {
        let text = format!("cannot listen at --prometheus {address}: {error}");
        Failure::new(Exit::Usage, text)
    })?;
    let page = Arc::<Mutex<String>>::default();
    let newest = Arc::clone(&page);
    thread::spawn(move || {
        for reader in listener.incoming() {
            match reader {
                // One after the other: there is one Prometheus, or two. A slow one is given up.
                Ok(mut reader) => {
                    let text = || {
                        let page = newest.lock().unwrap_or_else(PoisonError::into_inner);
                        page.clone()
                    };
                    let _ = answer(&mut reader, text);
                }
                // Without descriptors it would come back at once.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    });
    Ok(page)
}

/// Reads one request and answers it.
fn answer(reader: &mut TcpStream, page: impl FnOnce() -> String) -> io::Result<()> {
    reader.set_write_timeout(Some(LIMIT))?;
    let request = head(reader)?;
    let mut words = request.split(' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split('?').next();
    let (status, content, body) = match (method, path) {
        (Some("GET" | "HEAD"), Some("/metrics")) => match page() {
            page if page.is_empty() => (
                "503 Service Unavailable",
                "text/plain",
                "the first look is not over\n".to_owned(),
            ),
            page => ("200 OK", CONTENT, page),
        },
        (Some("GET" | "HEAD"), _) => (
            "404 Not Found",
            "text/plain",
            "the metrics are at /metrics\n".to_owned(),
        ),
        _ => (
            "405 Method Not Allowed",
            "text/plain",
            "GET /metrics\n".to_owned(),
        ),
    };
    let length = body.len();
    let body = if method == Some("HEAD") { "" } else { &body };
    write!(
        reader,
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// The head of a request, up to the empty line.
fn head(reader: &mut TcpStream) -> io::Result<String> {
    let end = Instant::now() + LIMIT;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > LONGEST_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        reader.set_read_timeout(Some(left))?;
        match reader.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend(&part[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Replaces the file at once, so that no reader finds half of it.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let beside = file.with_extension(format!("prom.{}", process::id()));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}
