//! The patterns of `KEYS`: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a character that is meant itself.

/// Whether the text fits the pattern, as `KEYS` and `SCAN` of Redis decide it.
pub fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, text);
    // Behind the last star, and the text where the star ends; an earlier star need not take more.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(behind) = rest.strip_prefix(b"*") {
            (rest, star) = (behind, Some((behind, left)));
            continue;
        }
        let step = match left.split_first() {
            None if rest.is_empty() => return true,
            // A star that takes more leaves even less text.
            None => return false,
            Some((byte, tail)) => behind_one(rest, *byte).map(|behind| (behind, tail)),
        };
        (rest, left) = match (step, star) {
            (Some(step), _) => step,
            (None, Some((behind, [_, tail @ ..]))) => {
                star = Some((behind, tail));
                (behind, tail)
            }
            (None, _) => return false,
        };
    }
}

/// The pattern behind its first element, if this byte fits that.
fn behind_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => {
            let (fits, rest) = set(rest, byte);
            fits.then_some(rest)
        }
        [b'\\', wanted, rest @ ..] | [wanted, rest @ ..] => (*wanted == byte).then_some(rest),
    }
}

/// Whether the byte is in a set, and the pattern behind it. A set without an end ends with the pattern.
fn set(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let (mut rest, wanted) = match pattern.strip_prefix(b"^") {
        Some(rest) => (rest, false),
        None => (pattern, true),
    };
    let mut found = false;
    loop {
        rest = match rest {
            [] => return (found == wanted, rest),
            [b']', rest @ ..] => return (found == wanted, rest),
            [b'\\', one, rest @ ..] => {
                found |= *one == byte;
                rest
            }
            [first, b'-', last, rest @ ..] => {
                found |= (*first.min(last)..=*first.max(last)).contains(&byte);
                rest
            }
            [one, rest @ ..] => {
                found |= *one == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_fit_as_in_redis() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("", "", true),
            ("**", "a", true),
            ("a*", "", false),
            ("or*:?", "orders:4", true),
            ("or*:?", "orders:42", false),
            ("*a*b", "xaxbab", true),
            ("*a*b", "xaxba", false),
            ("[a-c]x", "bx", true),
            ("[c-a]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[a", "a", true),
            ("[]", "a", false),
            (r"[\]]", "]", true),
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

    #[test]
    fn neither_a_long_text_nor_many_stars_end_the_program() {
        let text = vec![b'a'; 1 << 20];
        assert!(fits(b"*", &text));
        assert!(!fits(b"*b", &text));
        let stars = "a*".repeat(40) + "b";
        assert!(!fits(stars.as_bytes(), &text[..1000]));
    }
}
