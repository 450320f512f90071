//! The only place where an error becomes an HTTP status. The body is Firecracker's: `{"fault_message": "..."}`.

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::task::JoinError;
use volt_vmm::{Error, report};

use crate::failure::Failure;

/// The body of every refusal.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FaultMessage {
    /// What is wrong, for a person.
    pub(crate) fault_message: String,
}

/// A refusal.
#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    message: String,
}

impl Fault {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The request asks for what it may not: a field, a value, the wrong moment.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// There is nothing at this path.
    pub(super) fn path(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("no such path: {path}"))
    }

    /// There is something at this path, but not for this method.
    pub(super) fn method(method: &Method, path: &str) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not allowed on {path}"))
    }

    /// The body is longer than `limit` bytes.
    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("request body: longer than {limit} bytes"))
    }

    /// The client did not send its body in time.
    pub(super) fn too_slow(seconds: u64) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, format!("request body: not complete after {seconds} seconds"))
    }

    /// A call of the library panicked: a bug of ours, and the one refusal that is not the client's fault.
    pub(super) fn panicked(error: JoinError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("volt-vmm has a bug: {error}"))
    }
}

// Firecracker answers 400 to whatever a request led to, and its clients tell success from failure by that.
impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::refused(report(&error))
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::refused(report(&failure))
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        (self.status, Json(FaultMessage { fault_message: self.message })).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_400_with_its_whole_chain() {
        let source = std::io::ErrorKind::NotFound.into();
        let fault = Fault::from(Error::File { act: "open kernel", name: "/k".into(), source });
        assert_eq!(fault.message, "cannot open kernel /k: entity not found");
        assert_eq!(fault.into_response().status(), StatusCode::BAD_REQUEST);
    }
}
