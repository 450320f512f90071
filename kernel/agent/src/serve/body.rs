//! Bodies of requests in JSON.

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use crate::reply::Failure;

/// Reads a body of at most this length.
pub async fn read(body: Incoming, longest: usize) -> Result<Bytes, Failure> {
    let content = Limited::new(body, longest).collect().await;
    content.map(http_body_util::Collected::to_bytes).map_err(|error| unreadable(&error))
}

/// Reads a value.
pub async fn json<T: DeserializeOwned>(body: Incoming, longest: usize) -> Result<T, Failure> {
    parse(&read(body, longest).await?)
}

/// Parses a value.
pub fn parse<T: DeserializeOwned>(content: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(content).map_err(|error| unreadable(&error))
}

fn unreadable(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, format!("cannot read the body: {error}"))
}
