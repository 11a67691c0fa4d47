//! Where one command or reply of the Redis protocol ends.

/// How deep replies may be nested; ours are flat.
const DEPTH: u32 = 8;

/// The length of the frame that `bytes` begin with, once all of it is there.
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    end_of(bytes, 0, DEPTH)
}

/// Whether the frame is something that the server says unasked: what confirms a subscription looks
/// the same.
pub(crate) fn is_unasked(frame: &[u8]) -> bool {
    let confirms = |word: &[u8]| word.ends_with(b"subscribe");
    frame.starts_with(b">")
        && !frame
            .split(|byte| *byte == b'\r')
            .nth(2)
            .is_some_and(confirms)
}

/// Whether the frame is a message on a channel, in either protocol.
pub(crate) fn is_message(frame: &[u8]) -> bool {
    let starts = [&b"3\r\n$7\r\nmessage"[..], b"3\r\n$8\r\nsmessage"];
    matches!(frame.first(), Some(b'>' | b'*'))
        && starts.iter().any(|start| frame[1..].starts_with(start))
}

/// Whether the frame says that a tracked key has changed.
pub(crate) fn is_invalidation(frame: &[u8]) -> bool {
    frame.starts_with(b">2\r\n$10\r\ninvalidate\r\n")
}

fn end_of(bytes: &[u8], start: usize, depth: u32) -> Option<usize> {
    let rest = bytes.get(start..)?;
    let line = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let after = start + line + 2;
    let number = std::str::from_utf8(&rest[1..line])
        .ok()
        .and_then(|text| text.parse::<i64>().ok());
    match (rest[0], number) {
        (b'$' | b'=' | b'!', Some(size)) => {
            let end = usize::try_from(size).map_or(after, |size| after + size + 2);
            (end <= bytes.len()).then_some(end)
        }
        (b'*' | b'~' | b'>', Some(count)) => items(bytes, after, count, depth),
        (b'%', Some(count)) => items(bytes, after, count * 2, depth),
        _ => Some(after),
    }
}

fn items(bytes: &[u8], start: usize, count: i64, depth: u32) -> Option<usize> {
    let depth = depth.checked_sub(1)?;
    (0..count).try_fold(start, |at, _| end_of(bytes, at, depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_ends_where_it_ends() {
        let frames: [&[u8]; 9] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":5\r\n",
            b"$3\r\na\r\n\r\n",
            b"$-1\r\n",
            b"*2\r\n:1\r\n$1\r\nx\r\n",
            b"*-1\r\n",
            b"%1\r\n+a\r\n*1\r\n:2\r\n",
            b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
        ];
        for frame in frames {
            let longer = [frame, b"+next\r\n"].concat();
            assert_eq!(
                length(&longer),
                Some(frame.len()),
                "{}",
                frame.escape_ascii()
            );
            for cut in 0..frame.len() {
                assert_eq!(
                    length(&frame[..cut]),
                    None,
                    "{}",
                    frame[..cut].escape_ascii()
                );
            }
        }
    }

    #[test]
    fn messages_are_told_from_replies() {
        assert!(is_message(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n"));
        assert!(is_message(
            b"*3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\n0\r\n"
        ));
        assert!(is_invalidation(
            b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
        ));
        assert!(!is_message(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"));
        assert!(
            is_unasked(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n") && !is_unasked(b"*2\r\n")
        );
        assert!(is_unasked(
            b">3\r\n$7\r\nmessage\r\n$9\r\nsubscribe\r\n$1\r\n0\r\n"
        ));
        assert!(!is_unasked(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"));
        assert!(!is_unasked(
            b">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n"
        ));
    }
}
