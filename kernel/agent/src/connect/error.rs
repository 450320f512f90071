//! Errors of calls.

use std::io;

use hyper::StatusCode;
use serde::Serialize;

/// Codes of errors that the agent reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request is malformed, or names something of the wrong kind.
    InvalidArgument,
    /// The call's time is over.
    DeadlineExceeded,
    /// The object does not exist.
    NotFound,
    /// The object exists.
    AlreadyExists,
    /// The kernel refuses.
    PermissionDenied,
    /// A limit is reached.
    ResourceExhausted,
    /// The object cannot do this in its state.
    FailedPrecondition,
    /// No such method.
    Unimplemented,
    /// Anything else.
    Internal,
    /// No such user.
    Unauthenticated,
}

impl Code {
    /// The HTTP status of a call with one response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

/// A failed call.
#[derive(Clone, Debug, Serialize)]
pub struct RpcError {
    /// The code.
    pub code: Code,
    /// The reason, for a human.
    pub message: String,
}

impl RpcError {
    /// An error with this code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// An error of the file system.
    pub fn of_file(act: &str, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            io::ErrorKind::AlreadyExists => Code::AlreadyExists,
            io::ErrorKind::PermissionDenied => Code::PermissionDenied,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
            io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename => Code::InvalidArgument,
            _ => Code::Internal,
        };
        Self::new(code, format!("cannot {act}: {error}"))
    }
}
