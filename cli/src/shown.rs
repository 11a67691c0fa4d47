//! Text of others on a terminal: names and owners may hold any character.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The text without characters that move the cursor, change colours or the order of the line.
pub(crate) fn shown(text: &str) -> String {
    let is_harmful = |char: char| {
        char.is_control()
            || matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .flat_map(|char| match is_harmful(char) {
            true => char.escape_unicode().collect::<Vec<char>>(),
            false => vec![char],
        })
        .collect()
}

/// As much of the text as these columns of a terminal have room for. Some characters need two.
pub(crate) fn cut(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, char)| {
        used += char.width().unwrap_or_default();
        used > columns
    });
    &text[..end.map_or(text.len(), |(end, _)| end)]
}

/// The end of the text, behind a mark if that is not all, in at most these columns.
pub(crate) fn end(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut room = columns.saturating_sub(1);
    let kept = text.char_indices().rev().take_while(|(_, char)| {
        let needed = char.width().unwrap_or_default();
        let fits = needed <= room;
        room = room.saturating_sub(needed);
        fits
    });
    let start = kept.last().map_or(text.len(), |(start, _)| start);
    format!("…{}", &text[start..])
}

/// The text of an error of the command line without the user and password of a URL, and without
/// those of `host:port,password=...`.
pub(crate) fn without_secrets(text: &str) -> String {
    let mut parts = text.split("password=");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |shown, part| {
        let end = part.find(char::is_whitespace).unwrap_or(part.len());
        format!("{shown}password=***{}", &part[end..])
    });
    let mut parts = text.split("://");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| {
        let end = part
            .find(|char: char| char.is_whitespace() || char == '/')
            .unwrap_or(part.len());
        let (authority, rest) = part.split_at(end);
        let host = authority.rsplit_once('@').map(|(_, host)| host);
        match host {
            Some(host) => format!("{shown}://***@{host}{rest}"),
            None => format!("{shown}://{part}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        assert_eq!(shown("order:ö 42"), "order:ö 42");
        let evil = "a\u{1b}[31m\u{7}\n\u{9b}\u{202e}";
        assert_eq!(shown(evil), r"a\u{1b}[31m\u{7}\u{a}\u{9b}\u{202e}");
    }

    #[test]
    fn a_wide_character_takes_two_columns() {
        assert_eq!(cut("注文:42", 4), "注文");
        assert_eq!(cut("注文:42", 3), "注");
        assert_eq!(cut("order", 9), "order");
        // A combining accent takes none.
        assert_eq!(cut("e\u{301}tat", 2), "e\u{301}t");
        assert_eq!(end("注文:42", 7), "注文:42");
        assert_eq!(end("注文:42", 6), "…文:42");
        assert_eq!(end("注文:42", 5), "…:42");
    }

    #[test]
    fn passwords_are_not_repeated() {
        let text = "unexpected argument 'redis://app:a@b@host:1/2' found; redis://other";
        let told = "unexpected argument 'redis://***@host:1/2' found; redis://other";
        assert_eq!(without_secrets(text), told);
        assert_eq!(without_secrets("plain"), "plain");
    }
}
