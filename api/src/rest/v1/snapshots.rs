//! `/v1/vm/snapshots`, and what leads back to them: rewinds and recordings.

use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use volt_vmm::{CaptureStats, Compression, Packing, RecordingSummary, SnapshotKind, SnapshotOptions};

use super::Refusals;
use super::operations::cancelled;
use crate::guest_agent;
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::calls::Queue;
use crate::rest::error::{Fault, StatusOnly};
use crate::rest::operations::OperationOf;
use crate::rest::snapshots::take;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Which pages of memory a snapshot has.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// All.
    #[default]
    Full,
    /// Those that differ from the VM's last snapshot.
    Diff,
}

/// A snapshot to take.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSnapshot {
    /// The directory to create; with `memory_path`, the state file to write.
    #[schema(value_type = String)]
    pub(crate) path: PathBuf,
    /// The memory file to write.
    #[schema(value_type = Option<String>)]
    pub(crate) memory_path: Option<PathBuf>,
    #[serde(default)]
    pub(crate) kind: Kind,
    /// Packs memory.
    pub(crate) compress: Option<Compression>,
    /// Bytes of a chunk of packed memory.
    pub(crate) chunk_size: Option<u32>,
    /// Percent that a chunk must save to be stored compressed.
    pub(crate) least_saving: Option<u8>,
    /// Inflates the balloon first.
    #[serde(default)]
    pub(crate) trim: bool,
    /// Has the guest's agent run its hooks and freeze the workload first. A restored VM is woken.
    #[serde(default)]
    pub(crate) quiesce: bool,
    /// The longest pause of the guest, in milliseconds.
    pub(crate) max_pause_ms: Option<u64>,
    /// The id in `/v1/vm/operations`: up to 64 letters, digits, `_` and `-`. By default it gets a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<String>,
}

impl NewSnapshot {
    fn options(&self) -> Result<SnapshotOptions, Fault> {
        let kind = match self.kind {
            Kind::Full => SnapshotKind::Full,
            Kind::Diff => SnapshotKind::Diff,
        };
        let packing = Packing::from_options(self.compress, self.chunk_size, self.least_saving)?;
        let mut options = SnapshotOptions::default().kind(kind).packing(packing);
        (options.trim, options.max_pause) = (self.trim, self.max_pause_ms.map(Duration::from_millis));
        Ok(options)
    }
}

/// A snapshot that was taken.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Taken {
    /// The guest's pause, in microseconds.
    paused_us: u64,
    /// Number of passes over memory while the guest ran.
    passes: u32,
    /// Pages copied: those that differ from the base, or the pages of the diff.
    pages: u64,
    /// Pages copied in the pause.
    pages_in_pause: u64,
    /// Bytes of all pages copied.
    bytes: u64,
}

impl From<CaptureStats> for Taken {
    fn from(stats: CaptureStats) -> Self {
        let paused_us = u64::try_from(stats.paused.as_micros()).unwrap_or(u64::MAX);
        let CaptureStats { passes, pages, pages_in_pause, .. } = stats;
        Self { paused_us, passes, pages, pages_in_pause, bytes: pages * PAGE }
    }
}

/// Take a snapshot; the VM runs on
#[utoipa::path(
    post,
    path = "/v1/vm/snapshots",
    tag = "snapshots",
    request_body = NewSnapshot,
    responses((status = 201, description = "the snapshot is complete", body = Taken), Refusals),
)]
pub(super) async fn create(
    State(api): State<Api>,
    Body(wanted): Body<NewSnapshot>,
) -> Result<(StatusCode, Json<Taken>), Fault> {
    let options = wanted.options()?;
    let place = (wanted.path, wanted.memory_path);
    let stats = take(&api, place, options, wanted.quiesce, wanted.operation).await?;
    Ok((StatusCode::CREATED, Json(stats.into())))
}

/// The snapshot that is being taken.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct Ongoing {
    /// Bytes worked through.
    done_bytes: u64,
    /// Bytes in all, as far as they are known.
    total_bytes: u64,
}

fn none_is_taken(act: &str) -> Fault {
    Fault::refused(format!("cannot {act}: no snapshot is being taken"))
}

/// Describe the snapshot that is being taken; others may wait for it
#[utoipa::path(
    get,
    path = "/v1/vm/snapshots/current",
    tag = "snapshots",
    responses((status = 200, body = Ongoing), Refusals),
)]
pub(super) async fn progress(State(api): State<Api>) -> Result<Json<Ongoing>, Fault> {
    let progress = api.operations.current_of_kind(OperationOf::Snapshot);
    let progress = progress.ok_or_else(|| none_is_taken("tell the progress of a snapshot"))?;
    Ok(Json(Ongoing { done_bytes: progress.done(), total_bytes: progress.total() }))
}

/// Cancel the snapshot that is being taken; the VM runs on, and nothing is left of the snapshot
#[utoipa::path(
    delete,
    path = "/v1/vm/snapshots/current",
    tag = "snapshots",
    responses((status = 202, description = "it ends soon, with an error for its client"), Refusals),
)]
pub(super) async fn cancel(State(api): State<Api>) -> StatusOnly {
    const ACT: &str = "cancel a snapshot";
    let progress = api.operations.current_of_kind(OperationOf::Snapshot);
    cancelled(ACT, &progress.ok_or_else(|| none_is_taken(ACT))?)
}

/// A rewind.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct Rewound {
    /// Pages that were put back.
    pages: u64,
    /// The guest's pause, in microseconds.
    paused_us: u64,
}

/// Rewind a restored VM to its snapshot, in place
#[utoipa::path(
    post,
    path = "/v1/vm/rewinds",
    tag = "snapshots",
    responses((status = 200, body = Rewound), Refusals),
)]
pub(super) async fn rewind(State(api): State<Api>) -> Result<Json<Rewound>, Fault> {
    let rewound = api.call_in(Queue::Captures, |slot| guest_agent::rewind(&slot.vm("rewind")?)).await?;
    let paused_us = u64::try_from(rewound.paused.as_micros()).unwrap_or(u64::MAX);
    Ok(Json(Rewound { pages: rewound.pages, paused_us }))
}

/// End the recording of touched pages, if it has not ended by itself, and describe the working set
#[utoipa::path(
    delete,
    path = "/v1/vm/recording",
    tag = "snapshots",
    responses((status = 200, body = RecordingSummary), Refusals),
)]
pub(super) async fn end_recording(State(api): State<Api>) -> Result<Json<RecordingSummary>, Fault> {
    api.call(|slot| slot.vm("end the recording")?.end_recording()).await.map(Json)
}
