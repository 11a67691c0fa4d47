//! Values as bytes: the arguments that a host gives, and the records that it gets.
//! `bindings-wasm/README.md` describes both.

use redlatch_proto::error::{Error, Result};

use crate::options::OptionValue;

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
            1 => OptionValue::Millis(self.number()?),
            2 => OptionValue::Flag(self.byte()? != 0),
            3 => OptionValue::Text(self.text()?),
            _ => OptionValue::Unset,
        })
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

/// The kinds of records.
pub(crate) mod record {
    /// Open a connection.
    pub(crate) const CONNECT: u8 = 1;
    /// Write bytes to a connection.
    pub(crate) const WRITE: u8 = 2;
    /// Close a connection.
    pub(crate) const CLOSE: u8 = 3;
    /// A call has succeeded.
    pub(crate) const DONE: u8 = 4;
    /// A call has failed.
    pub(crate) const FAILED: u8 = 5;
    /// A hold was lost.
    pub(crate) const LOST: u8 = 6;
    /// A client has events.
    pub(crate) const EVENTS: u8 = 7;
    /// A client without handles has ended: it opens no connection any more.
    pub(crate) const GONE: u8 = 8;
}

/// The kinds of changes of a counter.
pub(crate) mod change {
    pub(crate) const RELEASE: u8 = 0;
    pub(crate) const SET_PERMITS: u8 = 1;
    pub(crate) const ADD_PERMITS: u8 = 2;
    pub(crate) const DRAIN: u8 = 3;
    pub(crate) const SET_COUNT: u8 = 4;
    pub(crate) const COUNT_DOWN: u8 = 5;
}

/// The kinds of counters.
pub(crate) mod counter {
    pub(crate) const SEMAPHORE: u8 = 0;
    pub(crate) const LATCH: u8 = 1;
}

/// The kinds of values behind [`record::DONE`].
pub(crate) mod value {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const FLAG: u8 = 1;
    pub(crate) const TOKEN: u8 = 2;
    pub(crate) const HOLDERS: u8 = 3;
    pub(crate) const NAMES: u8 = 4;
    /// The lock is held.
    pub(crate) const GRANTED: u8 = 5;
    pub(crate) const PERMITS: u8 = 6;
    /// The number of a counter.
    pub(crate) const NUMBER: u8 = 7;
    /// All locks of a multi lock are held.
    pub(crate) const PARTS: u8 = 8;
}
