//! `redlatch explain`: cause and remedy of an error, where no page is at hand. The texts are those of the library.

use redlatch::{ErrorKind, LostReason, embed};

use crate::arguments::Explain;
use crate::failure::{Exit, Failure};

pub(crate) fn explain(arguments: &Explain) -> Result<u8, Failure> {
    let word = arguments.word.as_str();
    let mut entries: Vec<String> = Vec::new();
    for kind in ErrorKind::ALL {
        let code = (Exit::of(*kind) as u8).to_string();
        if [kind.name(), &code].contains(&word) {
            let (meaning, advice) = (kind.meaning(), kind.advice());
            entries.push(format!(
                "{kind} (exit code {code}): {meaning}\n  {advice}\n"
            ));
        }
    }
    for reason in LostReason::ALL {
        if reason.name() == word {
            let (meaning, advice) = (reason.meaning(), reason.advice());
            entries.push(format!("lost, {reason}: {meaning}\n  {advice}\n"));
        }
    }
    if let Some(option) = embed::all_options().find(|option| option.name == word) {
        let (name, default, doc) = (option.name, option.default, option.doc);
        entries.push(format!("option {name} (default: {default}): {doc}\n"));
    }
    if entries.is_empty() {
        let names: Vec<&str> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "{word:?} is none of the exit codes 64 to 77, no option, no reason of a loss and no error: {}",
                names.join(", ")
            ),
        ));
    }
    crate::print(entries.join("\n").as_bytes())
}
