//! A reply of the server, as far as scripts and errors need it.

/// An answer of a server. A driver makes it from the value of its Redis client.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Nil,
    Int(i64),
    BulkString(Vec<u8>),
    SimpleString(String),
    Array(Vec<Value>),
    /// An error reply.
    ServerError(ServerError),
    /// A type that none of our scripts returns, as a person reads it.
    Other(String),
}

impl Value {
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<String> {
        match self {
            Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Value::SimpleString(text) => Some(text.clone()),
            _ => None,
        }
    }
}

/// An error reply: its first word, and the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    code: String,
    details: Option<String>,
}

impl ServerError {
    pub fn new(code: impl Into<String>, details: Option<String>) -> Self {
        ServerError {
            code: code.into(),
            details,
        }
    }

    pub fn code(&self) -> &str {
        &self.code
    }

    pub fn details(&self) -> Option<&str> {
        self.details.as_deref()
    }
}
