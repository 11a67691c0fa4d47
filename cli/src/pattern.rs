//! Patterns of names, as KEYS and SCAN of Redis read them.

/// A pattern that fits every key of a lock whose name fits this one: a semaphore keeps its taken
/// permits in `{NAME}:timeout`. The caller looks at the names again.
pub(crate) fn of_keys(pattern: &str) -> String {
    // An open bracket or a backslash may change the meaning of the rest.
    let plain = pattern.split(['[', '\\']).next().unwrap_or_default();
    format!("*{plain}*")
}

/// Whether the text fits the pattern.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    redlatch::embed::glob::fits(pattern.as_bytes(), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_of_keys_finds_taken_permits_too() {
        for (pattern, name) in [
            ("orders:*", "orders:42"),
            ("orders:?2", "orders:42"),
            ("*:[0-9]", "orders:4"),
            (r"a\*", "a*"),
            ("[", "["),
            ("{a}b*", "{a}bc"),
        ] {
            let keys = of_keys(pattern);
            for key in [
                name.to_owned(),
                format!("{{{name}}}:timeout"),
                format!("{name}:timeout"),
            ] {
                assert!(fits(&keys, &key), "{keys} {key}");
            }
        }
    }
}
