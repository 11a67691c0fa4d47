//! The core's tables, read once when the package is loaded.

use napi_derive::napi;
use redlatch::embed::all_options;
use redlatch::{ErrorKind, LostReason};

use crate::values::SPELLING;

/// One row of the table of errors or of lost reasons.
#[napi(object)]
pub struct Row {
    /// The stable number.
    pub number: u32,
    /// The name, in the core's spelling.
    pub name: String,
    /// The name of the class of errors.
    pub class_name: Option<String>,
    /// Whether the same call can succeed later.
    pub retryable: bool,
    /// One sentence for people.
    pub meaning: String,
}

/// Every kind of error.
#[napi]
pub fn error_kinds() -> Vec<Row> {
    let row = |kind: &ErrorKind| Row {
        number: kind.number().into(),
        name: kind.name().to_owned(),
        class_name: Some(kind.class_name().to_owned()),
        retryable: kind.retryable(),
        meaning: kind.meaning().to_owned(),
    };
    ErrorKind::ALL.iter().map(row).collect()
}

/// Every reason for which a hold can be lost.
#[napi]
pub fn lost_reasons() -> Vec<Row> {
    let row = |reason: &LostReason| Row {
        number: reason.number().into(),
        name: reason.name().to_owned(),
        class_name: None,
        retryable: reason.retryable(),
        meaning: redlatch::Error::from(*reason).message().to_owned(),
    };
    LostReason::ALL.iter().map(row).collect()
}

/// One option.
#[napi(object)]
pub struct OptionRow {
    /// The name, in the core's spelling.
    pub name: String,
    /// The name as JavaScript spells it.
    pub spelled: String,
    /// The place where the option can be given.
    pub scope: String,
    /// The type of its value.
    pub r#type: String,
}

/// Every option there is.
#[napi]
pub fn options() -> Vec<OptionRow> {
    let row = |info: &redlatch::embed::OptionInfo| OptionRow {
        name: info.name.to_owned(),
        spelled: SPELLING.of(info.name),
        scope: format!("{:?}", info.scope).to_lowercase(),
        r#type: format!("{:?}", info.r#type),
    };
    all_options().map(row).collect()
}
