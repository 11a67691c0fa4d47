//! Names of locks, and the ids of their owners.

use std::sync::Arc;

/// A validated lock name: UTF-8, 1 to 1,024 bytes.
pub type Name = Arc<str>;

/// An owner within its client: the last group of the uuid, and the number after it. Drawn for every
/// first acquisition, never reused.
pub type OwnerId = u64;

/// The low bits of an owner id that are its number. The other bits are the last group of its uuid.
const NUMBER_BITS: u32 = 16;

/// The first owner id with this last group of the uuid, which has 48 bits.
pub fn first_owner(last_group: u64) -> OwnerId {
    last_group << NUMBER_BITS
}

/// The number after the colon.
pub(crate) fn number_of(owner: OwnerId) -> u64 {
    owner % first_owner(1)
}

/// Whether both owners have the same uuid.
pub(crate) fn is_same_identity(a: OwnerId, b: OwnerId) -> bool {
    a >> NUMBER_BITS == b >> NUMBER_BITS
}

/// Appends the uuid of an owner: that of the client, with the owner's last group in place of the
/// client's. Before the first connection owners have no group of their own, and the client's stays.
pub(crate) fn write_identity(uuid: &str, owner: OwnerId, out: &mut Vec<u8>) {
    const DIGITS: usize = 12;
    let group = owner >> NUMBER_BITS;
    let (client, last) = uuid.as_bytes().split_at(uuid.len().saturating_sub(DIGITS));
    out.extend_from_slice(client);
    if group == 0 {
        return out.extend_from_slice(last);
    }
    let digit = |at: usize| b"0123456789abcdef"[(group >> (4 * at) & 15) as usize];
    out.extend((0..DIGITS).rev().map(digit));
}

/// The digits of the largest `u64`.
pub(crate) const MOST_DIGITS: usize = 20;

/// Writes a number in decimal digits.
pub(crate) fn write_number(out: &mut Vec<u8>, number: u64) {
    // Short numbers are common.
    if number < 10 {
        return out.push(b'0' + number as u8);
    }
    if number < 100 {
        return out.extend_from_slice(&[b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]);
    }
    let (mut digits, mut first, mut rest) = ([0; MOST_DIGITS], MOST_DIGITS, number);
    while rest >= 10 {
        first -= 2;
        let two = (rest % 100) as u8;
        (digits[first], digits[first + 1]) = (b'0' + two / 10, b'0' + two % 10);
        rest /= 100;
    }
    if rest > 0 {
        first -= 1;
        digits[first] = b'0' + rest as u8;
    }
    out.extend_from_slice(&digits[first..]);
}
