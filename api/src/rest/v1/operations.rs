//! `/v1/vm/operations`: snapshots, forks and the load that are under way or wait for their turn.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use volt_vmm::Progress;

use super::Refusals;
use crate::rest::Api;
use crate::rest::body::Id;
use crate::rest::error::{Fault, StatusOnly};
use crate::rest::operations::OperationState;

/// The answer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OperationList {
    /// The oldest first.
    pub(crate) operations: Vec<OperationState>,
}

/// List the snapshots, forks and loads that are under way or wait for their turn
#[utoipa::path(
    get,
    path = "/v1/vm/operations",
    tag = "operations",
    responses((status = 200, body = OperationList), Refusals),
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Json<OperationList>, Fault> {
    Ok(Json(OperationList { operations: api.operations.list() }))
}

/// Cancel an operation, now or when its turn comes; nothing is left of it, and a running VM runs on
#[utoipa::path(
    delete,
    path = "/v1/vm/operations/{id}",
    tag = "operations",
    params(("id" = String, Path, description = "the id that the request chose, or its number")),
    responses((status = 202, description = "it ends soon, and its client gets an error"), Refusals),
)]
pub(super) async fn cancel(State(api): State<Api>, Id(id): Id) -> StatusOnly {
    let act = format!("cancel operation {id}");
    let none = || {
        Fault::refused(format!("cannot {act}: there is none of this id; GET /v1/vm/operations lists them"))
    };
    cancelled(&act, &api.operations.progress_of(&id).ok_or_else(none)?)
}

/// Cancels what the progress is of. `act` says that in an error: `cancel operation 7`.
///
/// # Errors
/// It is too late.
pub(super) fn cancelled(act: &str, progress: &Progress) -> StatusOnly {
    match progress.cancel() {
        true => Ok(StatusCode::ACCEPTED),
        false => Err(Fault::refused(format!("cannot {act}: it is about to succeed"))),
    }
}
