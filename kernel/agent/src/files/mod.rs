//! The REST calls for files.

mod body;
pub mod compose;
pub mod download;
mod metadata;
mod multipart;
mod open;
pub mod tree;
pub mod upload;

use hyper::StatusCode;

use crate::query::Query;
use crate::reply::Failure;
use crate::setup::Setup;
use crate::users::User;

/// The user of a call for files.
fn user(setup: &Setup, query: &Query) -> Result<User, Failure> {
    let user = setup.user(query.get("username"));
    user.map_err(|error| Failure::new(StatusCode::UNAUTHORIZED, error.message))
}

/// Runs work that waits for a disk or a client in another thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the call ended: {error}")))?
}
