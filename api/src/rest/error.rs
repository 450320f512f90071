//! The only place where an error becomes an HTTP status. The body is Firecracker's `{"fault_message":
//! "..."}`, with cures as values if the library knows any.

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Deserializer, Serialize};
use volt_vmm::{Cure, Error, cure};

use crate::cures;
use crate::failure::Failure;

/// Start of the paths that Firecracker lacks.
const OWN_PATHS: &str = "/v1/";

/// The body of every refusal.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct FaultMessage {
    /// The refusal for a person, with the cures' fields.
    fault_message: String,
    /// The same for a client with words of its own.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "if_known")]
    curable: Option<Curable>,
}

/// Reads the cures, or nothing if a server of another version knows other ones.
fn if_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Curable>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// A refusal with cures.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
struct Curable {
    problem: String,
    cures: Vec<Cure>,
}

impl FaultMessage {
    /// Formats the refusal with its cures in `words`.
    pub(crate) fn report(self, words: impl Fn(&Cure) -> String) -> String {
        match self.curable {
            Some(Curable { problem, cures }) => cure::with_cures(problem, &cures, words),
            None => self.fault_message,
        }
    }
}

/// Outcome of an act whose answer has a status and no body.
pub(crate) type StatusOnly = Result<StatusCode, Fault>;

/// A refusal.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    problem: String,
    cures: Vec<Cure>,
}

impl Fault {
    fn new(status: StatusCode, problem: impl Into<String>) -> Self {
        Self { status, problem: problem.into(), cures: Vec::new() }
    }

    /// Refuses a field, a value, or an act at this time.
    pub(super) fn refused(problem: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, problem)
    }

    /// Refuses a path that does not exist.
    pub(super) fn path(method: &Method, path: &str) -> Self {
        match path.starts_with(OWN_PATHS) {
            true => Self::new(StatusCode::NOT_FOUND, format!("no such path: {path}")),
            false => Self::as_firecracker(method, path),
        }
    }

    /// Refuses a method that a path lacks.
    pub(super) fn method(method: &Method, path: &str) -> Self {
        match path.starts_with(OWN_PATHS) {
            true => Self::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not allowed on {path}")),
            false => Self::as_firecracker(method, path),
        }
    }

    /// Firecracker's words for both.
    fn as_firecracker(method: &Method, path: &str) -> Self {
        Self::refused(format!("Invalid request method and/or path: {method} {path}."))
    }

    /// Refuses a body longer than `limit` bytes.
    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("request body: longer than {limit} bytes"))
    }

    /// Refuses a body that did not arrive in time.
    pub(super) fn too_slow(seconds: u64) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, format!("request body: not complete after {seconds} seconds"))
    }

    /// As [`Fault::renamed`], for the answer with the fault.
    pub(super) fn rename(response: Response, names: &[(&str, &str)]) -> Response {
        match response.extensions().get::<Self>() {
            Some(fault) => fault.clone().renamed(names).into_response(),
            None => response,
        }
    }

    /// Replaces the library's name of the refused field by the request's. `names` has pairs of both.
    pub(crate) fn renamed(self, names: &[(&str, &str)]) -> Self {
        let Some((field, rest)) = self.problem.split_once(": ") else { return self };
        let Some((_, name)) = names.iter().find(|(library, _)| *library == field) else { return self };
        Self { problem: format!("{name}: {rest}"), ..self }
    }

    /// Reports a panic in a call of the library: the one refusal that no request can avoid.
    pub(super) fn panicked() -> Self {
        let problem = "volt-vmm has a bug: the request's thread panicked; standard error says where";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, problem)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&cure::with_cures(self.problem.clone(), &self.cures, cures::as_field))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Failure::from(error).into()
    }
}

// Firecracker answers 400 to every failure of a request, and its clients tell success from failure by that.
impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        let status = match &failure {
            // As in Firecracker, too.
            Failure::Vmm(Error::MetadataTooLarge { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self { cures: failure.cures(), ..Self::new(status, volt_vmm::problem(&failure)) }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let Self { status, problem, cures } = self.clone();
        let fault_message = self.to_string();
        let curable = (!cures.is_empty()).then_some(Curable { problem, cures });
        (status, Extension(self), Json(FaultMessage { fault_message, curable })).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_a_400_with_its_whole_chain() {
        let source = std::io::ErrorKind::NotFound.into();
        let fault = Fault::from(Error::File { act: "open kernel", name: "/k".into(), source });
        assert_eq!(fault.problem, "cannot open kernel /k: entity not found");
        assert_eq!(fault.into_response().status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn client_can_put_cures_in_its_own_words() {
        let cures = vec![Cure::VsockSocket, Cure::AllowedDirectory];
        let curable = Some(Curable { problem: "no".to_owned(), cures });
        let body = serde_json::to_string(&FaultMessage { fault_message: "x".to_owned(), curable }).unwrap();
        let read: FaultMessage = serde_json::from_str(&body).unwrap();
        assert_eq!(
            read.report(cures::as_option),
            "no; give the vsock device a socket (--vsock socket=PATH), \
             or allow its directory (--allow-path DIR)"
        );
        let read: FaultMessage = serde_json::from_str(r#"{"fault_message":"x"}"#).unwrap();
        assert_eq!(read.report(cures::as_option), "x");
    }

    #[test]
    fn refusal_with_an_unknown_cure_keeps_its_text() {
        for cure in [r#""wait""#, r#"{"wait":{"seconds":1}}"#] {
            let curable = format!(r#"{{"problem":"no","cures":["vsock_socket",{cure}]}}"#);
            let body = format!(r#"{{"fault_message":"no; wait","curable":{curable}}}"#);
            let read: FaultMessage = serde_json::from_str(&body).unwrap();
            assert_eq!(read.report(cures::as_option), "no; wait");
        }
    }
}
