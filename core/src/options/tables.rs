//! The tables of errors, lost reasons and options, for languages that read JSON.

use std::fmt::Display;

use super::{Spelling, all_options};
use crate::error::{Error, ErrorKind, LostReason};

/// All three tables as JSON, with the names of options in this spelling beside the table's own.
pub fn tables(spelling: Spelling) -> String {
    let errors = ErrorKind::ALL.iter().map(|kind| {
        object(&[
            ("number", &kind.number()),
            ("name", &quoted(kind.name())),
            ("className", &quoted(kind.class_name())),
            ("retryable", &kind.retryable()),
            ("meaning", &quoted(kind.meaning())),
        ])
    });
    let reasons = LostReason::ALL.iter().map(|reason| {
        object(&[
            ("number", &reason.number()),
            ("name", &quoted(reason.name())),
            ("retryable", &reason.retryable()),
            ("meaning", &quoted(Error::from(*reason).message())),
        ])
    });
    let options = all_options().map(|info| {
        let scope = format!("{:?}", info.scope).to_ascii_lowercase();
        object(&[
            ("name", &quoted(info.name)),
            ("spelled", &quoted(&spelling.of(info.name))),
            ("scope", &quoted(&scope)),
            ("type", &quoted(&format!("{:?}", info.r#type))),
        ])
    });
    object(&[
        ("errors", &list(errors.collect())),
        ("reasons", &list(reasons.collect())),
        ("options", &list(options.collect())),
    ])
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn object(fields: &[(&str, &dyn Display)]) -> String {
    let mut json = String::from("{");
    for (name, value) in fields {
        let comma = if json.len() > 1 { "," } else { "" };
        json += &format!("{comma}\"{name}\":{value}");
    }
    json + "}"
}

fn list(rows: Vec<String>) -> String {
    format!("[{}]", rows.join(","))
}
