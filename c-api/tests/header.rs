//! `include/redlatch.h` is what cbindgen makes of the source. `REDLATCH_BLESS=1` writes it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use redlatch::{ErrorKind, LostReason};

/// The order of the header.
const SOURCES: &[&str] = &["options", "client", "canceller", "lock", "events", "status"];

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A comment of one line, or more where the line would be too long.
fn row(out: &mut String, name: &str, number: u8, meaning: &str) {
    writeln!(out, "    /** {meaning} */\n    {name} = {number},").unwrap();
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
    out += "\n#if defined(__GNUC__)\n#define REDLATCH_MUST_CHECK __attribute__((warn_unused_result))\n";
    out += "#else\n#define REDLATCH_MUST_CHECK\n#endif\n";
    out += "\n/** The values of redlatch_status: numbers are never changed and never used again. */\nenum {\n";
    row(&mut out, "REDLATCH_OK", 0, "Success.");
    for kind in ErrorKind::ALL {
        row(
            &mut out,
            &format!("REDLATCH_{}", kind.name().to_uppercase()),
            kind.number(),
            kind.meaning(),
        );
    }
    out += "};\n\n/** The values of redlatch_lost_reason. */\nenum {\n";
    for reason in LostReason::ALL {
        row(
            &mut out,
            &format!("REDLATCH_LOST_{}", reason.name().to_uppercase()),
            reason.number(),
            reason.meaning(),
        );
    }
    // A comma after the last one is not C89 and C++98, but C99 and C++11.
    out + "};"
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
    let mut config = cbindgen::Config::from_file(file("cbindgen.toml")).expect("cbindgen.toml");
    config.header = Some(
        std::fs::read_to_string(file("manual.txt"))
            .unwrap()
            .trim_end()
            .to_owned(),
    );
    config.after_includes = Some(constants());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(file(&format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder
        .generate()
        .expect("the source is readable for cbindgen")
        .write(&mut text);
    let text = String::from_utf8(text).expect("text");
    // cbindgen leaves negative constants without brackets.
    let bracketed = text.lines().map(|line| match line.rsplit_once(" -") {
        Some((define, number)) if define.starts_with("#define ") => {
            format!("{define} (-{number})\n")
        }
        _ => format!("{line}\n"),
    });
    one_liners(&bracketed.collect::<String>())
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
        "REDLATCH_BLESS=1 cargo test -p redlatch-c; first difference: {differing:?}"
    );
}
