//! Values as bytes: the arguments that a host gives, and the records that it gets.
//! `bindings-wasm/README.md` describes both.

use std::time::Duration;

use redlatch_proto::error::{Error, Result};

use crate::options::{OptionValue, read_duration};

/// The arguments of a call, one after the other.
pub(crate) struct Arguments<'a>(pub(crate) &'a [u8]);

impl<'a> Arguments<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| Error::invalid("the arguments of a call end too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    pub(crate) fn number(&mut self) -> Result<f64> {
        Ok(f64::from_bits(self.whole()?))
    }

    /// A number of 64 bits without a sign.
    pub(crate) fn whole(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let mut length = [0; 4];
        length.copy_from_slice(self.take(4)?);
        self.take(u32::from_le_bytes(length) as usize)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Error::invalid("a text is not UTF-8"))
    }

    pub(crate) fn optional_text(&mut self) -> Result<Option<&'a str>> {
        match self.byte()? {
            0 => Ok(None),
            _ => self.text().map(Some),
        }
    }

    /// The value of an option; its numbers are milliseconds or counts.
    pub(crate) fn value(&mut self) -> Result<OptionValue<'a>> {
        Ok(match self.byte()? {
            given::MILLIS => OptionValue::Millis(self.number()?),
            given::BOOL => OptionValue::Flag(self.byte()? != 0),
            given::STRING => OptionValue::Text(self.text()?),
            _ => OptionValue::Unset,
        })
    }

    /// What follows, if anything does.
    pub(crate) fn rest<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        (!self.0.is_empty()).then(|| read(self)).transpose()
    }

    /// The value of an option that is a time, if one follows.
    pub(crate) fn duration(&mut self, option: &str) -> Result<Option<Duration>> {
        self.rest(|given| read_duration(option, given.value()?))
    }

    /// Names and values of options, up to the end.
    pub(crate) fn each_option(
        &mut self,
        mut set: impl FnMut(&str, OptionValue<'_>) -> Result<()>,
    ) -> Result<()> {
        while !self.0.is_empty() {
            let name = self.text()?;
            set(name, self.value()?)?;
        }
        Ok(())
    }
}

/// Records for the host, one after the other: a byte for the kind, then its fields.
#[derive(Default)]
pub(crate) struct Records(pub(crate) Vec<u8>);

impl Records {
    pub(crate) fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    pub(crate) fn number(&mut self, number: f64) -> &mut Self {
        self.whole(number.to_bits())
    }

    pub(crate) fn whole(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }
}

/// The numbers of the interface, by groups. Hosts have the same: `hosts_have_these_numbers`.
macro_rules! numbers {
    ($($(#[$of:meta])* $group:ident { $($(#[$doc:meta])* $name:ident = $number:literal)+ })+) => {
        $(
            $(#[$of])*
            pub(crate) mod $group {
                $(
                    $(#[$doc])*
                    #[allow(dead_code, reason = "the others are left over for it")]
                    pub(crate) const $name: u8 = $number;
                )+
            }
        )+
        #[cfg(test)]
        const NUMBERS: &[(&str, &[(&str, u8)])] =
            &[$((stringify!($group), &[$((stringify!($name), $number)),+])),+];
    };
}

numbers! {
    /// The kinds of records.
    record {
        /// Open a connection.
        CONNECT = 1
        /// Write bytes to a connection.
        WRITE = 2
        /// Close a connection.
        CLOSE = 3
        /// A call has succeeded.
        DONE = 4
        /// A call has failed.
        FAILED = 5
        /// A hold was lost.
        LOST = 6
        /// A client has events.
        EVENTS = 7
        /// A client without handles has ended: it opens no connection any more.
        GONE = 8
        /// When the module has to be woken at the latest, if that is sooner than was told before.
        WAKE = 9
    }

    /// The kinds of values behind [`record::DONE`].
    value {
        NONE = 0
        FLAG = 1
        TOKEN = 2
        HOLDERS = 3
        NAMES = 4
        /// The lock is held.
        GRANTED = 5
        PERMITS = 6
        /// The number of a counter.
        NUMBER = 7
        /// All locks of a multi lock are held.
        PARTS = 8
    }

    /// The kinds of values of options.
    given {
        UNSET = 0
        /// Milliseconds, or another number.
        MILLIS = 1
        BOOL = 2
        STRING = 3
    }

    /// For whom a lock is acquired.
    key {
        /// For the hold alone.
        ONCE = 0
        TASK = 1
        EXPLICIT = 2
    }

    /// The kinds of questions about a lock.
    inspection {
        /// All that hold it.
        OWNERS = 0
        /// Their processes as well.
        PROCESSES = 1
        /// All that wait for it, in order.
        QUEUE = 2
    }

    /// The kinds of changes of a counter.
    change {
        RELEASE = 0
        SET_PERMITS = 1
        ADD_PERMITS = 2
        DRAIN = 3
        SET_COUNT = 4
        COUNT_DOWN = 5
    }

    /// The kinds of counters.
    counter {
        SEMAPHORE = 0
        LATCH = 1
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::NUMBERS;

    fn file(path: &str) -> String {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(root.join(path)).unwrap()
    }

    #[test]
    fn hosts_have_these_numbers() {
        for (group, numbers) in NUMBERS {
            let javascript = match *group {
                "given" => "../bindings-node/lib/wasm/bytes.js",
                _ => "../bindings-node/lib/wasm/host.js",
            };
            let python = "examples/host.py";
            let first = numbers[0].1;
            let names: Vec<&str> = numbers.iter().map(|(name, _)| *name).collect();
            let values: Vec<String> = numbers.iter().map(|(_, at)| at.to_string()).collect();
            let (names, values) = (names.join(", "), values.join(", "));
            let range = match first {
                0 => numbers.len().to_string(),
                first => format!("{first}, {}", usize::from(first) + numbers.len()),
            };
            let lines = [
                (javascript, format!("\nconst [{names}] = [{values}]\n")),
                (python, format!("\n{names} = range({range})\n")),
            ];
            for (host, line) in lines {
                assert!(file(host).contains(&line), "{host} lacks the line{line}");
            }
        }
        let (records, manual) = (NUMBERS[0].1, file("README.md"));
        for (name, number) in records {
            let row = format!("| {number} {} |", name.to_lowercase());
            assert!(manual.contains(&row), "README.md lacks {row}");
        }
    }
}
