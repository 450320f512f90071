//! Reads the JSON body of a request within limits of size and time, and the id in its path.

use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use tokio::time::timeout;

use super::Api;
use super::error::Fault;
use super::objects::Objects;

/// Longest time to receive a body, in seconds.
const SECONDS: u64 = 10;

/// The body of a request as a `T`. As in Firecracker, its content type is ignored.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Fault> {
        let bytes = received(request, api).await?;
        if bytes.is_empty() {
            return Err(Fault::refused("request body: empty; this request needs one in JSON"));
        }
        parsed(&bytes).map(Self)
    }
}

/// The body of a request that may have none.
#[derive(Debug)]
pub(super) struct OptionalBody<T>(pub(super) T);

impl<T: DeserializeOwned + Default> FromRequest<Api> for OptionalBody<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Fault> {
        let bytes = received(request, api).await?;
        if bytes.is_empty() { Ok(Self(T::default())) } else { parsed(&bytes).map(Self) }
    }
}

/// The last part of a request's path: the id of a device or an operation.
#[derive(Debug)]
pub(super) struct Id(pub(super) String);

impl FromRequestParts<Api> for Id {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Fault> {
        let refused =
            |rejection: PathRejection| Fault::refused(format!("request path: {}", rejection.body_text()));
        Path::from_request_parts(parts, api).await.map(|Path(id)| Self(id)).map_err(refused)
    }
}

async fn received(request: Request, api: &Api) -> Result<Bytes, Fault> {
    let limit = api.longest_body;
    let bytes = timeout(Duration::from_secs(SECONDS), to_bytes(request.into_body(), limit)).await;
    bytes.map_err(|_| Fault::too_slow(SECONDS))?.map_err(|_| Fault::too_large(limit))
}

/// Reads a value, in which objects are JSON objects. An error names the place of a field.
pub(super) fn read<'de, T: Deserialize<'de>>(from: impl Deserializer<'de>) -> Result<T, String> {
    serde_path_to_error::deserialize(Objects(from)).map_err(|error| {
        let place = error.path().to_string();
        let problem = error.into_inner();
        // The place of the whole body is a dot.
        if place == "." { problem.to_string() } else { format!("{place}: {problem}") }
    })
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let refused = |problem| Fault::refused(format!("request body: {problem}"));
    let read = read(&mut reader).map_err(refused)?;
    reader.end().map_err(|error| Fault::refused(format!("request body: {error}")))?;
    Ok(read)
}
