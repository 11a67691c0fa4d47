//! Where a key lies in a cluster.

/// How many slots there are.
pub(crate) const SLOTS: u16 = 16384;

/// The slot of a key, by the rule of Redis: the CRC16 of what stands between the first `{` and the
/// first `}` behind it, if that is not empty, else of the whole key.
pub(crate) fn slot(key: &str) -> u16 {
    let tagged = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tagged.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::names::{channel, token_key};

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, expected) in [("foo", 12182), ("", 0), ("{}x", slot("{}x")), ("a{b", slot("a{b"))] {
            assert_eq!(slot(key), expected, "{key}");
        }
        for (key, tag) in [("{user}.a", "user"), ("a{b}c{d}", "b"), ("{{x}}", "{x"), ("a}b{c}", "c")] {
            assert_eq!(slot(key), slot(tag), "{key}");
        }
        // An empty tag is none.
        assert_eq!(slot("{}{x}"), crc16(b"{}{x}") % SLOTS);
    }

    #[test]
    fn derived_keys_of_well_formed_names_lie_with_the_lock() {
        for name in ["orders", "{eu}:orders", "a{b}c", "ö"] {
            assert_eq!((slot(&channel(name)), slot(&token_key(name))), (slot(name), slot(name)), "{name}");
        }
        for name in ["a{b", "{}x", "a}b"] {
            assert_ne!(slot(&channel(name)), slot(name), "{name}");
        }
    }
}
