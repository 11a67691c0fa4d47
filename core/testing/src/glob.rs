//! The patterns of `KEYS`: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a character that is meant itself.

pub(crate) fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else {
        return text.is_empty();
    };
    let tail = text.get(1..).unwrap_or_default();
    match (first, text.first()) {
        (b'*', None) => fits(rest, text),
        (b'*', Some(_)) => fits(rest, text) || fits(pattern, tail),
        (_, None) => false,
        (b'?', Some(_)) => fits(rest, tail),
        (b'[', Some(byte)) => {
            let Some(end) = rest.iter().skip(1).position(|byte| *byte == b']') else {
                return false;
            };
            let (set, behind) = rest.split_at(end + 1);
            is_in(set, *byte) && fits(behind.get(1..).unwrap_or_default(), tail)
        }
        (b'\\', Some(byte)) if !rest.is_empty() => {
            rest.first() == Some(byte) && fits(&rest[1..], tail)
        }
        (wanted, Some(byte)) => wanted == byte && fits(rest, tail),
    }
}

fn is_in(set: &[u8], byte: u8) -> bool {
    let (set, wanted) = match set.strip_prefix(b"^") {
        Some(set) => (set, false),
        None => (set, true),
    };
    let mut found = false;
    let mut rest = set;
    while let [first, more @ ..] = rest {
        rest = match more {
            [b'-', last, more @ ..] => {
                found |= (*first..=*last).contains(&byte);
                more
            }
            _ => {
                found |= *first == byte;
                more
            }
        };
    }
    found == wanted
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_fit_as_in_redis() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("or*:?", "orders:4", true),
            ("or*:?", "orders:42", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[a", "a", false),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("a", "ab", false),
        ] {
            assert_eq!(
                fits(pattern.as_bytes(), text.as_bytes()),
                wanted,
                "{pattern} {text}"
            );
        }
    }
}
