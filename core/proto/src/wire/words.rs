//! The words of a command, and how they are written.

use std::time::Duration;

use super::ids::{OwnerId, is_same_identity, number_of, write_identity, write_number};
use super::kind::Form;
use super::op::Renewal;

/// The words of a command, stored one after the other in one buffer.
#[derive(Default)]
pub(crate) struct Words {
    pub(crate) bytes: Vec<u8>,
    /// Where each word ends.
    ends: Vec<usize>,
}

/// The bytes and the words that most calls need.
const USUAL: (usize, usize) = (192, 8);

impl Words {
    /// With room for this many usual calls.
    pub(crate) fn for_calls(calls: usize) -> Words {
        Words {
            bytes: Vec::with_capacity(calls * USUAL.0),
            ends: Vec::with_capacity(calls * USUAL.1),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Adds a word; `write` appends its bytes.
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(USUAL.0);
            self.ends.reserve(USUAL.1);
        }
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn add(&mut self, word: &str) {
        self.write(|out| out.extend_from_slice(word.as_bytes()));
    }

    /// Adds one word made of these parts.
    pub(crate) fn parts(&mut self, parts: &[&str]) {
        self.write(|out| {
            parts
                .iter()
                .for_each(|part| out.extend_from_slice(part.as_bytes()))
        });
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.write(|out| write_number(out, number));
    }

    pub(crate) fn owner(&mut self, form: &Form, uuid: &str, owner: OwnerId) {
        self.write(|out| form.write_owner(uuid, owner, out));
    }

    /// Adds two words: the prefix that all these owners share, and the rest of each owner. Most
    /// were drawn one after the other and share a uuid. If not, the prefix is empty.
    pub(crate) fn owners(&mut self, uuid: &str, holds: &[Renewal]) {
        let first = holds.first().map_or(0, |hold| hold.owner);
        let alike = holds.iter().all(|hold| is_same_identity(hold.owner, first));
        self.write(|out| {
            if alike {
                write_identity(uuid, first, out);
                out.push(b':');
            }
        });
        self.write(|out| {
            for hold in holds {
                if !alike {
                    write_identity(uuid, hold.owner, out);
                    out.push(b':');
                }
                write_number(out, number_of(hold.owner));
                out.push(b' ');
            }
        });
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn each(&self, mut each: impl FnMut(&[u8])) {
        let mut begin = 0;
        for end in &self.ends {
            each(&self.bytes[begin..*end]);
            begin = *end;
        }
    }
}

/// Writes the head of a command or a word in RESP: a mark, and the number of words or bytes that
/// follow.
pub(crate) fn write_head(out: &mut Vec<u8>, mark: u8, number: usize) {
    match number {
        0..10 => out.extend_from_slice(&[mark, b'0' + number as u8, b'\r', b'\n']),
        10..100 => {
            let (ten, one) = ((number / 10) as u8, (number % 10) as u8);
            out.extend_from_slice(&[mark, b'0' + ten, b'0' + one, b'\r', b'\n']);
        }
        _ => {
            out.push(mark);
            write_number(out, number as u64);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Writes a word as a RESP bulk string.
pub(crate) fn write_bulk(out: &mut Vec<u8>, word: &[u8]) {
    write_head(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn write_bulk_number(out: &mut Vec<u8>, number: u64) {
    let digits = number.checked_ilog10().unwrap_or_default() + 1;
    write_head(out, b'$', digits as usize);
    write_number(out, number);
    out.extend_from_slice(b"\r\n");
}

/// Whole milliseconds, rounded up: the server must hold a lock at least for the lease from which
/// the engine computes its deadline. At least 1, because an expiry of 0 would delete the key.
pub(crate) fn whole_ms(lease: Duration) -> u64 {
    let part = u64::from(lease.subsec_micros().div_ceil(1000));
    lease
        .as_secs()
        .saturating_mul(1000)
        .saturating_add(part)
        .max(1)
}
