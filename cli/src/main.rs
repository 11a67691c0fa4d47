//! `redlatch`: runs a command under a lock, shows a lock's holder, frees a lock.

mod acl;
mod arguments;
mod connect;
mod doctor;
mod failure;
mod free;
mod held;
mod ls;
mod metrics;
mod pattern;
mod processes;
mod prometheus;
mod reply;
mod run;
mod scan;
mod shown;
mod starters;
mod waiters;
mod watch;
mod who;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};
use failure::{Exit, Failure};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let text = error.to_string();
            // A closed standard error leaves nowhere to complain.
            let shown = shown::without_secrets(&text);
            let _ = match shown != text && error.use_stderr() {
                true => write!(io::stderr(), "{shown}"),
                false => error.print(),
            };
            return match error.use_stderr() {
                true => Exit::Usage.into(),
                false => ExitCode::SUCCESS,
            };
        }
    };
    starters::end_with_them();
    let outcome = match &arguments.command {
        Command::Run(command) => run::run(&arguments.server, command),
        Command::Who(command) => who::who(&arguments.server, command),
        Command::Ls(command) => ls::ls(&arguments.server, command),
        Command::Watch(command) => watch::watch(&arguments.server, command),
        Command::Doctor(command) => doctor::doctor(&arguments.server, command),
        Command::Acl(command) => acl::acl(&arguments.server, command),
        Command::Free(command) => free::free(&arguments.server, command),
        Command::Ping => ping(&arguments),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "redlatch", &mut text);
            print(&text)
        }
        Command::Man => manual().and_then(|text| print(&text)),
        Command::Version => print(format!("redlatch {}\n", env!("CARGO_PKG_VERSION")).as_bytes()),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.text.is_empty() {
                complain(&failure.text);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// One line on standard error, where the output of the command does not mix with it.
fn complain(text: &str) {
    let line = text.lines().collect::<Vec<_>>().join(" ");
    let _ = writeln!(io::stderr(), "redlatch: {}", shown::shown(&line));
}

/// Prints a whole text. A reader that has gone away, as `head` does, is no error.
fn print(text: &[u8]) -> Result<u8, Failure> {
    is_read(text).map(|_| 0)
}

/// Prints a text, and says whether there is still a reader.
fn is_read(text: &[u8]) -> Result<bool, Failure> {
    let mut out = io::stdout();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(
            Exit::Internal,
            format!("cannot write to standard output: {error}"),
        )),
    }
}

fn ping(arguments: &Arguments) -> Result<u8, Failure> {
    let client = connect::client(&arguments.server)?;
    client.ready().wait()?;
    client.close().wait()?;
    print(b"the server answers\n")
}

/// The manual page: of the program, then of each command.
fn manual() -> Result<Vec<u8>, Failure> {
    let mut command = Arguments::command();
    command.build();
    let mut page = Vec::new();
    let written = clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .and_then(|()| {
            command
                .get_subcommands()
                .filter(|command| command.get_name() != "help")
                .try_for_each(|command| {
                    let command = clap_mangen::Man::new(command.clone());
                    command.render_synopsis_section(&mut page)?;
                    command.render_description_section(&mut page)?;
                    // The exit codes, which `run` has at its end, stand at the end of the first part.
                    command.render_options_section(&mut page)
                })
        });
    match written {
        Ok(()) => Ok(page),
        Err(error) => Err(Failure::new(Exit::Internal, error.to_string())),
    }
}
