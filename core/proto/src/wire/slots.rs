//! The slot of a key in a Redis Cluster.

/// The number of slots.
pub const SLOTS: u16 = 16384;

/// The slot of a key, by the rule of Redis: the CRC16 of its hash tag, else of the whole key. The
/// hash tag is the text between the first `{` and the first `}` after it, unless it is empty.
pub fn slot(key: &str) -> u16 {
    crc16(tag(key.as_bytes()).unwrap_or(key.as_bytes())) % SLOTS
}

fn tag(key: &[u8]) -> Option<&[u8]> {
    let first = key.iter().position(|byte| *byte == b'{')?;
    let rest = &key[first + 1..];
    let end = rest.iter().position(|byte| *byte == b'}')?;
    Some(&rest[..end]).filter(|tag| !tag.is_empty())
}

/// CRC-16/XMODEM, a byte at a time: with many holds in a cluster, their slots are asked for again
/// and again.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (crc << 8) ^ CRC[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

/// The CRC of each byte.
const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::super::Topic;
    use super::*;
    use crate::wire::names::{channel, token_key};

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, expected) in [
            ("foo", 12182),
            ("", 0),
            ("{}x", slot("{}x")),
            ("a{b", slot("a{b")),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
        for (key, tag) in [
            ("{user}.a", "user"),
            ("a{b}c{d}", "b"),
            ("{{x}}", "{x"),
            ("a}b{c}", "c"),
        ] {
            assert_eq!(slot(key), slot(tag), "{key}");
        }
        // An empty hash tag does not count.
        assert_eq!(slot("{}{x}"), crc16(b"{}{x}") % SLOTS);
    }

    #[test]
    fn derived_keys_of_well_formed_names_lie_with_the_lock() {
        for name in ["orders", "{eu}:orders", "a{b}c", "ö"] {
            assert_eq!(
                (slot(&channel(Topic::Lock, name)), slot(&token_key(name))),
                (slot(name), slot(name)),
                "{name}"
            );
        }
        for name in ["a{b", "{}x", "a}b"] {
            assert_ne!(slot(&channel(Topic::Lock, name)), slot(name), "{name}");
        }
    }
}
