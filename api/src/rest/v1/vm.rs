//! `/v1/vm`: the VM itself. GET describes it, PUT makes it, PATCH pauses or resumes it, DELETE ends it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use volt_vmm::{BalloonStatus, Console, MemoryUsage, RunState, VmConfig};

use super::Refusals;
use crate::guest_agent;
use crate::process::serial_output::SerialOutput;
use crate::process::start;
use crate::rest::Api;
use crate::rest::body::{Body, OptionalBody, read};
use crate::rest::calls::Queue;
use crate::rest::counts::TimedAct;
use crate::rest::error::{Fault, StatusOnly};
use crate::rest::events::VmState;
use crate::rest::firecracker::names::balloon::named;
use crate::rest::snapshots::{SnapshotToRestore, restore};

/// Time that a guest has to end by itself, in milliseconds.
const TO_END_MS: u64 = 10_000;

/// The VM.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Description {
    /// Its name.
    id: String,
    state: VmState,
    /// Its configuration, with its present rate limits.
    config: Option<VmConfig>,
}

/// Describe the VM
#[utoipa::path(get, path = "/v1/vm", tag = "vm", responses((status = 200, body = Description), Refusals))]
pub(super) async fn describe(State(api): State<Api>) -> Json<Description> {
    let vm = api.slot.peek();
    Json(Description {
        id: api.slot.id().to_owned(),
        state: vm.as_ref().map(|vm| vm.state()).into(),
        config: vm.as_ref().map(|vm| vm.config()),
    })
}

/// The source of the VM.
#[derive(Debug)]
pub(super) enum Origin {
    Boot(Box<VmConfig>),
    Restore(Box<SnapshotToRestore>),
}

/// A kernel to boot, by a configuration, or a snapshot to restore.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Origin)]
#[allow(dead_code)] // a schema alone: the body is told by its key, so that an error names the field
pub(super) enum OriginSchema {
    Boot(VmConfig),
    Restore { snapshot: SnapshotToRestore },
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Restore {
            snapshot: SnapshotToRestore,
        }
        let value = serde_json::Value::deserialize(deserializer)?;
        if value.get("snapshot").is_some() {
            let restore: Restore = read(value).map_err(Error::custom)?;
            return Ok(Self::Restore(Box::new(restore.snapshot)));
        }
        read(value).map(|config| Self::Boot(Box::new(config))).map_err(Error::custom)
    }
}

/// Make the VM: boot a kernel, or restore a snapshot
#[utoipa::path(
    put,
    path = "/v1/vm",
    tag = "vm",
    request_body = OriginSchema,
    responses((status = 204, description = "the VM runs, or is paused if that was asked for"), Refusals),
)]
pub(super) async fn make(State(api): State<Api>, Body(origin): Body<Origin>) -> StatusOnly {
    match origin {
        Origin::Boot(config) => boot(api, *config).await,
        Origin::Restore(snapshot) => {
            restore(&api, *snapshot, SerialOutput::default()).await.map(|()| StatusCode::NO_CONTENT)
        }
    }
}

/// Boots a VM.
pub(super) async fn boot(api: Api, mut config: VmConfig) -> StatusOnly {
    config.devices.set_metadata_store(&api.metadata);
    api.start("boot a VM", || Ok(()), move |(), _| start::boot(config, Console::stdout())).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A state to bring the VM into.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WantedState {
    Paused,
    Running,
}

/// A change of the VM.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    state: WantedState,
}

/// Pause or resume the VM
#[utoipa::path(
    patch,
    path = "/v1/vm",
    tag = "vm",
    request_body = Change,
    responses((status = 204, description = "the VM has that state"), Refusals),
)]
pub(super) async fn change(State(api): State<Api>, Body(change): Body<Change>) -> StatusOnly {
    let act = match change.state {
        WantedState::Paused => TimedAct::Pause,
        WantedState::Running => TimedAct::Resume,
    };
    api.timed(act, None, move |slot| match change.state {
        WantedState::Paused => slot.vm("pause")?.pause(),
        WantedState::Running => guest_agent::resume(&slot.vm("resume")?),
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End the VM and its process at once; a start that is under way is cancelled
#[utoipa::path(
    delete,
    path = "/v1/vm",
    tag = "vm",
    responses((status = 204, description = "no guest runs any more; the process ends soon"), Refusals),
)]
pub(super) async fn end(State(api): State<Api>) -> StatusOnly {
    if api.cancel_start() {
        return Ok(StatusCode::NO_CONTENT);
    }
    // It waits for no other call, such as a long snapshot.
    api.call_in(Queue::Ahead, |slot| slot.vm("stop").map(|vm| vm.stop())).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An end that the guest prepares.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shutdown {
    /// Milliseconds after which the VM is ended all the same.
    timeout_ms: u64,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { timeout_ms: TO_END_MS }
    }
}

/// Ask the guest to end, and end it after a limit: by Ctrl-Alt-Del or its power button
#[utoipa::path(
    put,
    path = "/v1/vm/shutdown",
    tag = "vm",
    request_body = Option<Shutdown>,
    responses((status = 202, description = "the guest was asked; a paused one runs again"), Refusals),
)]
pub(super) async fn shut_down(
    State(api): State<Api>,
    OptionalBody(shutdown): OptionalBody<Shutdown>,
) -> StatusOnly {
    // No guest runs that could be asked.
    if api.cancel_start() {
        return Ok(StatusCode::ACCEPTED);
    }
    let vm = api.slot.vm("ask the guest to end")?;
    let (ended, limit) = (Arc::clone(&vm), Duration::from_millis(shutdown.timeout_ms));
    // The limit holds from now on, also while a snapshot keeps the guest from being asked.
    tokio::spawn(async move {
        tokio::time::sleep(limit).await;
        if ended.state() != RunState::Ended {
            ended.stop();
        }
    });
    // The answer does not wait for that either.
    tokio::spawn(async move {
        let asked = api
            .call_in(Queue::Ahead, move |_| guest_agent::resume(&vm).and_then(|()| vm.request_end()))
            .await;
        if let Err(fault) = asked {
            log::warn!("cannot ask the guest to end: {fault}");
        }
    });
    Ok(StatusCode::ACCEPTED)
}

/// Describe the memory that the VM holds on the host
#[utoipa::path(
    get,
    path = "/v1/vm/memory",
    tag = "vm",
    responses((status = 200, body = MemoryUsage), Refusals),
)]
pub(super) async fn memory(State(api): State<Api>) -> Result<Json<MemoryUsage>, Fault> {
    api.call(|slot| slot.vm("read the VM's memory usage")?.memory_usage()).await.map(Json)
}

/// The balloon.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Balloon {
    /// Memory that the guest is asked to give, in MiB.
    target_mib: u64,
    /// Memory that the guest says it has given, in MiB.
    actual_mib: u64,
    /// Pages of 4 KiB that went back to the host, including the guest's reports and hints.
    returned_pages: u64,
    /// Invalid pages that the guest named.
    ignored_pages: u64,
    /// Memory statistics that the guest sent last, if it was asked.
    statistics: Option<BTreeMap<&'static str, u64>>,
}

impl From<BalloonStatus> for Balloon {
    fn from(status: BalloonStatus) -> Self {
        let BalloonStatus { target_mib, actual_mib, returned_pages, ignored_pages, statistics } = status;
        Self { target_mib, actual_mib, returned_pages, ignored_pages, statistics: statistics.map(named) }
    }
}

/// Describe the balloon
#[utoipa::path(get, path = "/v1/vm/balloon", tag = "vm", responses((status = 200, body = Balloon), Refusals))]
pub(super) async fn balloon(State(api): State<Api>) -> Result<Json<Balloon>, Fault> {
    api.call(|slot| slot.vm("look at the balloon")?.balloon()).await.map(|status| Json(status.into()))
}
