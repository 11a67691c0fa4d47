//! `redlatch`: runs a command under a lock, shows a lock's holder, frees a lock.

mod acl;
mod arguments;
mod connect;
mod doctor;
mod explain;
mod failure;
mod free;
mod held;
mod ls;
mod metrics;
mod pattern;
mod permits;
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
        Command::Explain(command) => explain::explain(command),
        Command::Free(command) => free::free(&arguments.server, command),
        Command::Permits(command) => permits::permits(&arguments.server, command),
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

/// What clap does not know.
const MANUAL: &str = r".SH EXIT STATUS
Of \fBrun\fR: that of the command, or 128 + n if signal n ended it; else one of these.
{codes}
.SH ENVIRONMENT
.TP
.B REDLATCH_URL
The server. \fB\-\-url\-file\fR and \fB\-\-url\fR come before it. The command of \fBrun\fR has it, however the URL was given.
.TP
.B REDLATCH_FENCING_TOKEN
Set for the command of \fBrun \-\-fencing\fR.
.SH EXAMPLES
.nf
{examples}
.fi
.SH SEE ALSO
.BR flock (1),
.BR timeout (1),
.BR crontab (5)
";

/// The manual page: of the program, then of each command.
fn manual() -> Result<Vec<u8>, Failure> {
    let mut command = Arguments::command();
    command.build();
    let mut page = Vec::new();
    write_manual(&command, &mut page)
        .map(|()| page)
        .map_err(|error| Failure::new(Exit::Internal, error.to_string()))
}

fn write_manual(command: &clap::Command, page: &mut Vec<u8>) -> io::Result<()> {
    let whole = clap_mangen::Man::new(command.clone());
    whole.render_title(page)?;
    whole.render_name_section(page)?;
    writeln!(page, ".SH SYNOPSIS")?;
    let parts = || {
        let parts = command.get_subcommands();
        parts.filter(|command| command.get_name() != "help")
    };
    for part in parts() {
        let mut part = part.clone();
        let usage = part.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim().replace('\n', " ");
        writeln!(page, "{}\n.br", escaped(&usage))?;
    }
    whole.render_description_section(page)?;
    whole.render_options_section(page)?;
    for part in parts() {
        writeln!(page, ".SH {}", part.get_name().to_uppercase())?;
        let mut section = Vec::new();
        let part = clap_mangen::Man::new(part.clone());
        part.render_description_section(&mut section)?;
        part.render_options_section(&mut section)?;
        // Its heads stand below that of the command.
        let section = String::from_utf8_lossy(&section).replace(".SH DESCRIPTION\n", "");
        write!(page, "{}", section.replace(".SH ", ".SS "))?;
    }
    let lines = |text: &str| {
        let lines = text.lines().skip(1).map(escaped);
        lines.collect::<Vec<_>>().join("\n")
    };
    let codes = format!(".nf\n{}\n.fi", lines(arguments::CODES));
    let end = MANUAL
        .replace("{codes}", &codes)
        .replace("{examples}", &lines(arguments::EXAMPLES));
    write!(page, "{end}")
}

/// A line of text for roff(7).
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line,
    }
}
