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
    bytes_fit(pattern.as_bytes(), text.as_bytes())
}

fn bytes_fit(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // Where to go on if the rest does not fit: behind the last star, with one more byte for it.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            (pattern, again) = (rest, Some((rest, text)));
            continue;
        }
        match (text, pattern) {
            ([], []) => return true,
            ([byte, following @ ..], [_, ..]) => {
                let (is_it, rest) = one(pattern, *byte);
                if is_it {
                    (pattern, text) = (rest, following);
                    continue;
                }
            }
            _ => {}
        }
        match again {
            Some((rest, [_, following @ ..])) => {
                (pattern, text, again) = (rest, following, Some((rest, following)));
            }
            _ => return false,
        }
    }
}

/// Whether the first element of a pattern fits the byte, and what follows the element.
fn one(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    match pattern {
        [b'?', rest @ ..] => (true, rest),
        [b'[', b'^', rest @ ..] => {
            let (is_in, rest) = class(rest, byte);
            (!is_in, rest)
        }
        [b'[', rest @ ..] => class(rest, byte),
        [b'\\', wanted, rest @ ..] | [wanted, rest @ ..] => (*wanted == byte, rest),
        [] => (false, pattern),
    }
}

/// Whether the byte is in the brackets, and what follows them. Brackets without an end go to the end.
fn class(mut pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut is_in = false;
    loop {
        pattern = match pattern {
            [] => return (is_in, pattern),
            [b']', rest @ ..] => return (is_in, rest),
            [b'\\', wanted, rest @ ..] => {
                is_in |= *wanted == byte;
                rest
            }
            [first, b'-', last, rest @ ..] => {
                is_in |= (*first.min(last)..=*first.max(last)).contains(&byte);
                rest
            }
            [wanted, rest @ ..] => {
                is_in |= *wanted == byte;
                rest
            }
        }
    }
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
