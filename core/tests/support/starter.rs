//! Redis-compatible servers of a test's own. `scripts/with-server --serve` starts and ends them, one for
//! each process of tests. It ends them all with this process, also when that is killed.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};

struct Starter {
    lines: ChildStdin,
    asked: u64,
    waiting: HashMap<u64, Sender<Value>>,
}

fn starter() -> &'static Mutex<Starter> {
    static STARTER: OnceLock<Mutex<Starter>> = OnceLock::new();
    STARTER.get_or_init(|| {
        let mut child = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .map(|folder| folder.join("scripts/with-server"))
            .find(|program| program.is_file())
            .and_then(|program| {
                let mut command = Command::new(program);
                let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
                piped.arg("--serve").spawn().ok()
            })
            .expect("scripts/with-server runs");
        let lines = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in answers.lines().map_while(Result::ok) {
                let answer: Value = serde_json::from_str(&line).expect("JSON");
                let id = answer["id"].as_u64().expect("a number");
                let waiter = starter().lock().unwrap().waiting.remove(&id);
                waiter.expect("it was asked").send(answer).unwrap();
            }
            starter().lock().unwrap().waiting.clear();
            child.wait().unwrap();
        });
        Mutex::new(Starter {
            lines,
            asked: 0,
            waiting: HashMap::new(),
        })
    })
}

/// The answer of the starter; its `serve` says what can be asked.
fn ask(mut line: Value) -> Result<Value, String> {
    let (told, answer) = channel();
    {
        let mut starter = starter().lock().unwrap();
        starter.asked += 1;
        line["id"] = starter.asked.into();
        let id = starter.asked;
        starter.waiting.insert(id, told);
        writeln!(starter.lines, "{line}").map_err(|error| error.to_string())?;
    }
    let mut answer = answer.recv().map_err(|_| "it has ended".to_owned())?;
    match answer.get("error") {
        Some(error) => Err(format!("{line}: {error}")),
        None => Ok(answer["is"].take()),
    }
}

/// A server, or servers that belong together.
pub struct Started(pub Value);

impl Started {
    pub fn start(topology: &str, args: &[&str], with: Value) -> Started {
        Started(
            ask(json!({"do": topology, "args": args, "with": with}))
                .unwrap_or_else(|error| panic!("no server: {error}")),
        )
    }

    /// Calls a method of it.
    pub fn call(&self, method: &str, args: &[Value]) {
        self.try_call(method, args)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    fn try_call(&self, method: &str, args: &[Value]) -> Result<Value, String> {
        ask(json!({"of": self.0["of"], "do": method, "args": args}))
    }

    pub fn text(&self, field: &str) -> String {
        self.0[field].as_str().expect("a text").to_owned()
    }

    fn number<T: TryFrom<u64>>(&self, field: &str) -> T {
        let number = self.0[field].as_u64().map(T::try_from);
        number.and_then(Result::ok).expect("a number")
    }

    pub fn servers(&self, field: &str) -> Vec<Server> {
        let all = self.0[field].as_array().expect("servers").iter();
        all.map(|told| Server(Started(told.clone()))).collect()
    }
}

/// A running server. It ends when it is dropped.
pub struct Server(pub Started);

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// The same, with more arguments for the command line.
    pub fn start_with(args: &[&str]) -> Server {
        Server(Started::start("single", args, json!({})))
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.number("port")
    }

    /// The process, to be stopped and continued by a test.
    pub fn pid(&self) -> u32 {
        self.0.number("pid")
    }

    /// `redis://127.0.0.1:port/`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port())
    }

    /// Its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.0.text("socket").into()
    }

    /// Ends the server at once, as a crash does. Dropping does the same.
    pub fn kill(&mut self) {
        self.0.call("kill", &[]);
    }

    /// It does nothing any more, and its connections stay.
    pub fn hang(&self) {
        self.0.call("signal", &["STOP".into()]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without the starter the server has ended, too.
        let _ = self.0.try_call("close", &[]);
    }
}
