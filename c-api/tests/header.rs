//! `include/redlatch.h` is what cbindgen makes of the source. `REDLATCH_BLESS=1` writes it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use redlatch::embed::{Scope, all_options};
use redlatch::{ErrorKind, LostReason};

/// The order of the header: a file, and its functions that are rows of `exports!`.
const SOURCES: &[(&str, &[&str])] = &[
    ("options", crate::options::EXPORTED),
    ("client", crate::client::EXPORTED),
    ("canceller", crate::canceller::EXPORTED),
    ("lock", crate::lock::EXPORTED),
    ("semaphore", crate::semaphore::EXPORTED),
    ("counters", crate::counters::EXPORTED),
    ("events", crate::events::EXPORTED),
    ("status", &[]),
];

/// What stands for statuses that many functions have, and the statuses.
const STATUSES: &[(&str, &str)] = &[
    (
        " * - SERVER\n",
        " * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,\n \
         *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: \"Statuses of the server\" at the top.\n",
    ),
    (
        " * - STARTED\n",
        " * - REDLATCH_FORKED: the client belongs to the parent process.\n \
         * - REDLATCH_UNAVAILABLE: the process has no descriptor left.\n",
    ),
];

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// An enumeration. After its last constant there is no comma, which C++98 does not allow.
fn enumeration(rows: impl Iterator<Item = (String, u8, &'static str)>) -> String {
    let rows: Vec<String> = rows
        .map(|(name, number, meaning)| {
            format!("    /** {meaning} */\n    REDLATCH_{name} = {number}")
        })
        .collect();
    format!("enum {{\n{}\n}};", rows.join(",\n"))
}

/// The core's tables, for C.
fn constants() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let parts: Vec<&str> = version.split('.').collect();
    let mut out = String::from("\n");
    writeln!(out, "#define REDLATCH_VERSION \"{version}\"").unwrap();
    for (name, part) in ["MAJOR", "MINOR", "PATCH"].iter().zip(&parts) {
        writeln!(out, "#define REDLATCH_VERSION_{name} {part}").unwrap();
    }
    let numbers = parts.iter().map(|part| part.parse::<u32>().unwrap());
    let number = numbers.fold(0, |sum, part| {
        // Otherwise a later version could be a smaller number.
        assert!(part < 100, "{version}");
        sum * 100 + part
    });
    writeln!(out, "/** To compare: major * 10000 + minor * 100 + patch. */\n#define REDLATCH_VERSION_NUMBER {number}").unwrap();
    out += "\n#if defined(__GNUC__)\n#define REDLATCH_MUST_CHECK __attribute__((warn_unused_result))\n";
    out += "#else\n#define REDLATCH_MUST_CHECK\n#endif\n";
    out +=
        "\n/** The values of redlatch_status: numbers are never changed and never used again. */\n";
    let kinds = ErrorKind::ALL
        .iter()
        .map(|kind| (kind.name().to_uppercase(), kind.number(), kind.meaning()));
    out += &enumeration(once(("OK".to_owned(), 0, "Success.")).chain(kinds));
    out += "\n\n/** The values of redlatch_lost_reason. */\n";
    out += &enumeration(LostReason::ALL.iter().map(|reason| {
        let name = format!("LOST_{}", reason.name().to_uppercase());
        (name, reason.number(), reason.meaning())
    }));
    out
}

/// The core's table of options, as a comment.
fn options() -> String {
    let mut out = String::from(
        "\n\n/* Options, for redlatch_options_set(): name, value, default, meaning. options.md among the docs tells more.\n",
    );
    for (scope, title) in [
        (Scope::Client, "Options of a client:"),
        (
            Scope::Lock,
            "Options of a lock; a client takes them too, as defaults for its locks:",
        ),
    ] {
        writeln!(out, " *\n * {title}").unwrap();
        for info in all_options().filter(|info| info.scope == scope) {
            let what = format!("{}; default: {}", info.r#type, info.default);
            writeln!(out, " *\n * {}: {what}", info.name).unwrap();
            for line in wrapped(info.doc, 100) {
                writeln!(out, " *     {line}").unwrap();
            }
        }
    }
    let acquire: Vec<&str> = all_options()
        .filter(|info| info.scope == Scope::Acquire)
        .map(|info| info.name)
        .collect();
    let names = acquire.join(", ");
    writeln!(out, " *\n * The options of an acquisition ({names}) are parameters in C; token and permits are set by\n * redlatch_lock_set_token() and redlatch_semaphore_set_take(). */").unwrap();
    // In the table they are written for Markdown.
    out.replace('`', "")
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().unwrap();
        if last.is_empty() {
            *last = word.to_owned();
        } else if last.len() + word.len() < width {
            write!(last, " {word}").unwrap();
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Puts a comment of one sentence on one line.
fn one_liners(text: &str) -> String {
    let mut parts = text.split("/**\n * ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('\n') {
            Some((sentence, rest)) if rest.starts_with(" */\n") => {
                out += &format!("/** {sentence}{rest}")
            }
            _ => out += &format!("/**\n * {part}"),
        }
    }
    out
}

fn header() -> String {
    static HEADER: OnceLock<String> = OnceLock::new();
    HEADER.get_or_init(made).clone()
}

fn made() -> String {
    let mut config = cbindgen::Config::from_file(file("cbindgen.toml")).expect("cbindgen.toml");
    config.header = Some(
        std::fs::read_to_string(file("manual.txt"))
            .unwrap()
            .trim_end()
            .to_owned(),
    );
    config.after_includes = Some(constants() + options().trim_end());
    let folder = std::env::temp_dir().join(format!("redlatch-header-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for (source, exported) in SOURCES {
        let rows = folder.join(format!("{source}.rs"));
        std::fs::write(&rows, exported.join("\n")).unwrap();
        builder = builder
            .with_src(rows)
            .with_src(file(&format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder
        .generate()
        .expect("the source is readable for cbindgen")
        .write(&mut text);
    std::fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8(text).expect("text");
    let mended = text.lines().map(|line| match line.rsplit_once(" -") {
        // cbindgen leaves negative constants without brackets.
        Some((define, number)) if define.starts_with("#define ") => {
            format!("{define} (-{number})\n")
        }
        // C89 has no such comments.
        _ if line.starts_with(['#', '}']) => {
            format!("{}\n", line.split(" //").next().unwrap_or(line).trim_end())
        }
        _ => format!("{line}\n"),
    });
    let text = one_liners(&mended.collect::<String>());
    STATUSES
        .iter()
        .fold(text, |text, (short, all)| text.replace(short, all))
}

#[test]
fn the_header_is_up_to_date() {
    let (path, wanted) = (file("include/redlatch.h"), header());
    if std::env::var_os("REDLATCH_BLESS").is_some() {
        std::fs::write(&path, &wanted).expect("the header can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = wanted
        .lines()
        .zip(found.lines())
        .find(|(wanted, found)| wanted != found);
    assert!(
        wanted == found,
        "make -C c-api header; first difference: {differing:?}"
    );
}

/// The functions that return a status, each with its comment.
fn functions(header: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in header.lines() {
        if line.starts_with("/**") {
            comment.clear();
        }
        if line.starts_with("redlatch_status redlatch_")
            || line.starts_with("REDLATCH_MUST_CHECK redlatch_status redlatch_")
        {
            let name = line.split("redlatch_status ").nth(1).unwrap();
            found.push((name.split('(').next().unwrap().to_owned(), comment.clone()));
        }
        comment += line;
        comment.push('\n');
    }
    found
}

#[test]
fn each_function_lists_its_statuses() {
    let header = header();
    let functions = functions(&header);
    assert!(functions.len() > 20, "{functions:?}");
    for (name, comment) in functions {
        let statuses = comment.split_once("Statuses:").map(|(_, list)| list);
        assert!(
            statuses.is_some_and(|list| list.contains("- REDLATCH_INVALID_ARGUMENT")
                || list.contains("REDLATCH_INVALID_ARGUMENT,")),
            "{name} does not list its statuses"
        );
    }
}

#[test]
fn each_function_that_waits_for_the_server_has_a_form_for_event_loops() {
    let header = header();
    let functions = functions(&header);
    let is_there = |name: &str| functions.iter().any(|(known, _)| known == name);
    for (name, comment) in &functions {
        let form = match name.as_str() {
            "redlatch_client_open" => "redlatch_client_ready_start".to_owned(),
            "redlatch_lock_holder" => "redlatch_lock_holders_start".to_owned(),
            _ => match name.strip_suffix("_cancellable") {
                Some(wait) => format!("{wait}_cancel"),
                None => format!("{name}_start"),
            },
        };
        let statuses = comment.split_once("Statuses:").map_or("", |(_, list)| list);
        // Without a descriptor a function fails before it has asked the server.
        let waits = statuses
            .lines()
            .any(|line| line.contains("REDLATCH_UNAVAILABLE") && !line.contains("descriptor left"));
        assert!(!waits || is_there(&form), "{name} has no {form}");
    }
}

#[test]
fn each_constant_that_the_header_names_is_there() {
    let header = header();
    let defined = |name: &str| {
        header.contains(&format!("#define {name}")) || header.contains(&format!(" {name} = "))
    };
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    for (at, _) in header.match_indices("REDLATCH_") {
        let rest = &header[at..];
        let name = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        // The environment variable, and the guards of macros.
        if !["REDLATCH_URL", "REDLATCH_H"].contains(&name) {
            assert!(defined(name), "{name} is not in the header");
        }
    }
}

/// The facts that a compiled program relies on, one a line: functions with their parameters, types
/// of functions, fields of structures in their order, and values of constants.
fn abi(header: &str) -> Vec<String> {
    let code = without_comments(header);
    let mut facts = Vec::new();
    let mut declarations = String::new();
    for line in code.lines() {
        if let Some(constant) = line.strip_prefix("#define REDLATCH_") {
            // The version changes with each release, and the others are no values.
            match constant.split_once(' ') {
                Some((name, value)) if !constant.starts_with("VERSION") && name != "MUST_CHECK" => {
                    facts.push(format!("REDLATCH_{name} = {value}"));
                }
                _ => {}
            }
        } else if !line.starts_with('#') && !line.starts_with("extern \"C\"") {
            writeln!(declarations, "{line}").unwrap();
        }
    }
    let one_line = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ").replace("REDLATCH_MUST_CHECK ", "")
    };
    let mut rest = declarations.as_str();
    while let Some(end) = rest.find(';') {
        let declaration = rest[..end].trim();
        let Some((head, _)) = declaration.split_once('{') else {
            facts.push(without_names(&one_line(declaration)));
            rest = &rest[end + 1..];
            continue;
        };
        // A block: up to the first semicolon behind its end.
        let begin = rest.find('{').unwrap() + 1;
        let close = rest.find('}').unwrap();
        let after = close + rest[close..].find(';').unwrap();
        let (body, name) = (&rest[begin..close], rest[close + 1..after].trim());
        if head.trim().starts_with("enum") {
            facts.extend(body.split(',').map(one_line));
        } else {
            let fields = body
                .split(';')
                .map(one_line)
                .filter(|field| !field.is_empty());
            facts.extend(
                fields
                    .enumerate()
                    .map(|(at, field)| format!("{name}, field {at}: {field}")),
            );
        }
        rest = &rest[after + 1..];
    }
    facts.sort();
    facts
}

/// A function without the names of its parameters, on which no compiled program relies.
fn without_names(function: &str) -> String {
    let Some((head, parameters)) = function.rsplit_once('(') else {
        return function.to_owned();
    };
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let types: Vec<&str> = parameters
        .trim_end_matches(')')
        .split(", ")
        .map(|one| match one {
            "void" => one,
            _ => one.trim_end_matches(is_of_name).trim_end(),
        })
        .collect();
    format!("{head}({})", types.join(", "))
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out += part.split_once("*/").expect("comments end").1;
    }
    out
}

/// Programs that are compiled with one version run with each later one whose library has the same
/// name: so what is in `abi.txt` stays. The library makes each `redlatch_holder`, so that fields
/// can be added at its end. `scripts/release` compares the file to that of the last release.
#[test]
fn the_abi_only_grows() {
    let build = std::fs::read_to_string(file("build.rs")).unwrap();
    let soname = build
        .split("-soname,")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let first = format!(
        "# The binary interface of {soname}. Lines may be added, none may change: tests/header.rs."
    );
    let path = file("abi.txt");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let known: Vec<&str> = before.lines().skip(1).collect();
    let found = abi(&header());
    if before.starts_with(&first) {
        let is_gone = |fact: &&&str| !found.iter().any(|found| found == *fact);
        let gone: Vec<&&str> = known.iter().filter(is_gone).collect();
        assert!(
            gone.is_empty(),
            "a program that relies on this breaks: {gone:#?}; leave it as it is, or raise the number in build.rs"
        );
    }
    let now = format!("{first}\n{}\n", found.join("\n"));
    if std::env::var_os("REDLATCH_BLESS").is_some() {
        std::fs::write(&path, &now).expect("it can be written");
    } else {
        let is_new = |fact: &&String| !known.contains(&fact.as_str());
        let new: Vec<&String> = found.iter().filter(is_new).collect();
        assert!(
            before == now,
            "make -C c-api header; abi.txt lacks {new:#?}"
        );
    }
}

#[test]
fn a_change_of_the_abi_is_noticed() {
    let before = abi(&header());
    for (old, new) in [
        ("REDLATCH_TIMEOUT = 1,", "REDLATCH_TIMEOUT = 2,"),
        (
            "#define REDLATCH_FOREVER (-1)",
            "#define REDLATCH_FOREVER (-2)",
        ),
        (
            "redlatch_lock_extend(redlatch_lock *lock, uint64_t owner,",
            "redlatch_lock_extend(redlatch_lock *lock, uint32_t owner,",
        ),
        ("  uint32_t count;", "  uint64_t count;"),
        (
            "typedef int32_t redlatch_status;",
            "typedef int redlatch_status;",
        ),
        ("int64_t available, int64_t limit);", "int64_t available);"),
    ] {
        let header = header();
        assert!(header.contains(old), "{old}");
        let after = abi(&header.replace(old, new));
        assert!(before.iter().any(|fact| !after.contains(fact)), "{old}");
    }
}
