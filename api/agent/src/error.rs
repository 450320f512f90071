//! Errors of the client.

use std::io::{self, ErrorKind};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed call. Its text is about a VM whose name stands before it: `its agent does not answer: …`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The VM has no socket of a vsock.
    #[error("it has no agent: it does not run an image")]
    NoAgent,
    /// No program of the guest takes the connection.
    #[error("its agent does not listen; has the VM ended?")]
    NotListening,
    /// The connection failed, or took too long.
    #[error("its agent does not answer: {0}")]
    Unanswered(io::Error),
    /// The agent refuses.
    #[error("{message}")]
    Refused {
        /// The kind, such as `not_found` or `permission_denied`. Empty if the agent names none.
        code: String,
        /// The cause for a person, without control characters.
        message: String,
    },
    /// The agent's answer is none.
    #[error("its agent {0}")]
    Foreign(String),
    /// The host could not read or write what is copied.
    #[error("cannot copy")]
    Copy(#[source] io::Error),
}

impl Error {
    /// Makes a refusal.
    pub(crate) fn refused(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Refused { code: code.into(), message: message.into() }
    }

    /// The code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        if let Self::Refused { code, .. } = self { Some(code) } else { None }
    }
}

/// The error of a connection.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::NoAgent,
            ErrorKind::ConnectionRefused => Self::NotListening,
            // A socket's own limit passed.
            ErrorKind::WouldBlock => Self::Unanswered(ErrorKind::TimedOut.into()),
            _ => Self::Unanswered(error),
        }
    }
}
