//! Gives metrics away: over HTTP, or in a file.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use redlatch::Error;
use redlatch::embed::spawn;

use crate::arguments::Watch;
use crate::failure::{Exit, Failure};

/// How long a reader may take for its request and its reading together.
const LIMIT: Duration = Duration::from_secs(5);
/// How many readers are served at the same time. Others wait for as long as these may take.
const READERS: usize = 8;
/// The longest request. Prometheus sends some hundred bytes.
const LONGEST_REQUEST: usize = 8192;
/// The exposition format.
const CONTENT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The newest page, and where it goes.
pub(crate) struct Exporter {
    page: Option<Arc<Mutex<String>>>,
    file: Option<Arc<File>>,
    /// Whether the file was ever written.
    written: bool,
    /// Why the file cannot be written, since it was written last.
    stale: Option<String>,
}

impl Exporter {
    pub(crate) fn open(arguments: &Watch) -> Result<Self, Failure> {
        let page = arguments.prometheus.map(serve).transpose()?;
        Ok(Exporter {
            page,
            file: arguments.prometheus_file.clone().map(File::new),
            written: false,
            stale: None,
        })
    }

    /// The file, for those who end the program.
    pub(crate) fn file(&self) -> Option<Arc<File>> {
        self.file.clone()
    }

    pub(crate) fn is_used(&self) -> bool {
        self.page.is_some() || self.file.is_some()
    }

    /// Fails if the file cannot be written at all. Later it may be a full disk, which is told of, and tried again.
    pub(crate) fn publish(&mut self, text: String) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            let failed = file.replace(&text).err();
            match &failed {
                None => self.written = true,
                Some(text) if !self.written => {
                    return Err(Failure::new(Exit::Usage, text.clone()));
                }
                Some(text) if self.stale.as_ref() != Some(text) => crate::complain(text),
                Some(_) => {}
            }
            self.stale = failed;
        }
        if let Some(page) = &self.page {
            *page.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
        Ok(())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

/// The file until the program ends. Left behind it would say for ever that the last look was good.
pub(crate) struct File(Mutex<Option<PathBuf>>);

impl File {
    fn new(path: PathBuf) -> Arc<Self> {
        Arc::new(File(Mutex::new(Some(path))))
    }

    /// Replaces the file, unless it is removed. An error is a text for people.
    fn replace(&self, text: &str) -> Result<(), String> {
        let path = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &*path else { return Ok(()) };
        replace(path, text)
            .map_err(|error| format!("cannot write --prometheus-file {}: {error}", path.display()))
    }

    /// Nothing writes it after that.
    pub(crate) fn remove(&self) {
        let mut path = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = path.take() {
            let _ = fs::remove_file(path);
        }
    }
}

/// A page that threads give to everybody who connects to this address.
fn serve(address: SocketAddr) -> Result<Arc<Mutex<String>>, Failure> {
    let listener = TcpListener::bind(address).map_err(|error| {
        let text = format!("cannot listen at --prometheus {address}: {error}");
        Failure::new(Exit::Usage, text)
    })?;
    let listener = Arc::new(listener);
    let page = Arc::<Mutex<String>>::default();
    // Each serves one reader after the other, so that a slow one stops none of the others.
    for _ in 0..READERS {
        let (listener, newest) = (Arc::clone(&listener), Arc::clone(&page));
        let life = move || {
            for reader in listener.incoming() {
                match reader {
                    Ok(stream) => {
                        let text = || {
                            let page = newest.lock().unwrap_or_else(PoisonError::into_inner);
                            page.clone()
                        };
                        let end = Instant::now() + LIMIT;
                        let _ = answer(&mut Reader { stream, end }, text);
                    }
                    // Without descriptors it would come back at once.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        spawn("redlatch-page", life)
            .map_err(|error| Error::exhausted("cannot start a thread", &error))?;
    }
    Ok(page)
}

/// A reader that is given up at a time, however many parts it sends or takes.
struct Reader {
    stream: TcpStream,
    end: Instant,
}

impl Reader {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Reader {
    fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(part)
    }
}

impl Write for Reader {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(part)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Reads one request and answers it.
fn answer(reader: &mut Reader, page: impl FnOnce() -> String) -> io::Result<()> {
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
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    reader.write_all(answer.as_bytes())
}

/// The head of a request, up to the empty line.
fn head(reader: &mut Reader) -> io::Result<String> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > LONGEST_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_takes_little_by_little_is_given_up() -> io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let mut slow = TcpStream::connect(listener.local_addr()?)?;
        let taking = thread::spawn(move || {
            // Each part comes long before the time is over.
            while slow.read(&mut [0; 8192]).is_ok_and(|count| count > 0) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let end = Instant::now() + Duration::from_millis(300);
        let (stream, _) = listener.accept()?;
        let mut reader = Reader { stream, end };
        let written = reader.write_all(&vec![b'x'; 64 << 20]);
        drop(reader);
        assert!(taking.join().is_ok());
        let kind = written.map_err(|error| error.kind());
        let given_up = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kind.is_err_and(|kind| given_up.contains(&kind)), "{kind:?}");
        Ok(())
    }
}
