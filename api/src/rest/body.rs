//! Reads the JSON body of a request within limits of size and time.

use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Api;
use super::error::Fault;

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

async fn received(request: Request, api: &Api) -> Result<Bytes, Fault> {
    let limit = api.longest_body;
    let bytes = timeout(Duration::from_secs(SECONDS), to_bytes(request.into_body(), limit)).await;
    bytes.map_err(|_| Fault::too_slow(SECONDS))?.map_err(|_| Fault::too_large(limit))
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|error| Fault::refused(format!("request body: {error}")))
}
