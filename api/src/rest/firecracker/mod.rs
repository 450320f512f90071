//! Firecracker's paths, with its fields, statuses (204 for success) and states, so that its clients work.
//!
//! Fields of features that volt-vmm lacks are refused by name, unless they ask for nothing (`"smt": false`).

pub(crate) mod devices;
mod load;
mod logger;
pub(crate) mod machine;
mod metadata;
pub(crate) mod metric_names;
pub(crate) mod metrics;
pub(crate) mod names;
mod serial;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, patch, put};
use axum::{Json, Router, middleware};
use serde_json::{Value, json};
use volt_vmm::{Error, RunState};

use super::Api;
use super::body::Body;
use super::calls::Queue;
use super::counts::TimedAct;
use super::error::{Fault, StatusOnly};
use super::snapshots as acts;
use crate::guest_agent;
use crate::process::start;
use machine::Draft;
use names::machine::{Action, ActionType, SetState, WantedState};
use names::snapshot::{CreateSnapshot, LoadSnapshot};

pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(describe_instance))
        .route("/version", get(version))
        .route("/snapshot/load", put(load_snapshot))
        .route("/vm", patch(set_state))
        .merge(snapshots())
        .merge(configuration())
}

/// The path whose request has other names for the options of a snapshot than the library.
fn snapshots() -> Router<Api> {
    Router::new()
        .route("/snapshot/create", put(create_snapshot))
        .layer(middleware::map_response(async |response| Fault::rename(response, names::SNAPSHOT_FIELDS)))
}

/// Paths whose requests configure a VM in Firecracker's names, so refusals have them too.
fn configuration() -> Router<Api> {
    Router::new()
        .route("/actions", put(act))
        .merge(machine::routes())
        .merge(devices::routes())
        .merge(logger::routes())
        .merge(metrics::routes())
        .merge(metadata::routes())
        .merge(serial::routes())
        .layer(middleware::map_response(async |response| Fault::rename(response, names::FIELDS)))
}

async fn describe_instance(State(api): State<Api>) -> Json<Value> {
    let state = match api.slot.peek().map(|vm| vm.state()) {
        None | Some(RunState::Ended) => "Not started",
        Some(RunState::Running) => "Running",
        Some(RunState::Paused) => "Paused",
    };
    let version = env!("CARGO_PKG_VERSION");
    Json(json!({ "id": api.slot.id(), "state": state, "vmm_version": version, "app_name": "volt-vmm" }))
}

/// The version of Firecracker's API that these paths follow.
pub(crate) const API_VERSION: &str = "1.17.0";

// Firecracker's clients read `firecracker_version`, and some choose fields by it.
async fn version() -> Json<Value> {
    Json(json!({ "firecracker_version": API_VERSION, "volt_vmm_version": env!("CARGO_PKG_VERSION") }))
}

async fn create_snapshot(State(api): State<Api>, Body(request): Body<CreateSnapshot>) -> StatusOnly {
    let options = request.options()?;
    acts::take(&api, (request.snapshot_path, request.mem_file_path), options, request.quiesce, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn load_snapshot(State(api): State<Api>, Body(request): Body<LoadSnapshot>) -> StatusOnly {
    let tracks_dirty_pages = request.tracks_dirty_pages();
    acts::restore(&api, request.try_into()?, api.draft().serial_output()).await?;
    api.keep_tracking(tracks_dirty_pages);
    Ok(StatusCode::NO_CONTENT)
}

async fn set_state(State(api): State<Api>, Body(request): Body<SetState>) -> StatusOnly {
    let act = match request.state {
        WantedState::Paused => TimedAct::Pause,
        WantedState::Resumed => TimedAct::Resume,
    };
    api.timed(act, None, move |slot| match request.state {
        WantedState::Paused => slot.vm("pause")?.pause(),
        WantedState::Resumed => guest_agent::resume(&slot.vm("resume")?),
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn act(State(api): State<Api>, Body(request): Body<Action>) -> StatusOnly {
    match request.action_type {
        ActionType::InstanceStart => {}
        ActionType::SendCtrlAltDel => {
            api.call_in(Queue::Ahead, |slot| slot.vm("send Ctrl-Alt-Del")?.request_end()).await?;
            return Ok(StatusCode::NO_CONTENT);
        }
        ActionType::FlushMetrics => return metrics::flush(&api).await,
    }
    let (drafted, metadata) = (api.clone(), api.metadata.clone());
    let make = move |draft: Draft, _: &_| {
        let mut config = draft.config().ok_or(Error::NotNow {
            act: "start the VM",
            state: "has no kernel yet (PUT /boot-source gives it one)",
        })?;
        config.devices.set_metadata_store(&metadata);
        start::boot(config, draft.serial_output().open()?)
    };
    api.start("start the VM", move || Ok(drafted.draft()), make).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Serving;

    #[test]
    fn get_requests_describe_the_instance() {
        let api = Serving::start();
        let (status, body) = api.ask("GET", "/", "");
        assert!(
            status == 200 && body.contains(r#""state":"Not started""#) && body.contains("volt-vmm"),
            "{body}"
        );
        assert!(api.ask("GET", "/version", "").1.contains("firecracker_version"));
    }

    #[test]
    fn unknown_or_invalid_field_is_refused_by_its_name() {
        let api = Serving::start();
        let snapshot = r#"{"snapshot_path":"/s","x":1}"#;
        api.refuses("PUT", "/snapshot/create", snapshot, 400, "unknown field `x`");
        api.refuses("PUT", "/snapshot/load", snapshot, 400, "unknown field `x`");
        api.refuses("PUT", "/snapshot/create", "{}", 400, "missing field `snapshot_path`");
        api.refuses("PUT", "/snapshot/create", r#"{"snapshot_path":"#, 400, "EOF");
        api.refuses("PUT", "/snapshot/create", "", 400, "empty");
        api.refuses("PUT", "/snapshot/create", r#"{"snapshot_path":7}"#, 400, "invalid type");
        api.refuses("PATCH", "/vm", r#"{"state":"Asleep"}"#, 400, "unknown variant `Asleep`");
        let other = r#"{"snapshot_path":"/s","snapshot_type":"Half"}"#;
        api.refuses("PUT", "/snapshot/create", other, 400, "unknown variant `Half`");
        let two = r#"{"snapshot_path":"/s","mem_file_path":"/m",
                      "mem_backend":{"backend_type":"File","backend_path":"/m"}}"#;
        api.refuses("PUT", "/snapshot/load", two, 400, "too many fields");
        let file = r#"{"snapshot_path":"/s",
                       "mem_backend":{"backend_type":"File","backend_path":"/m","patience":1}}"#;
        api.refuses("PUT", "/snapshot/load", file, 400, "patience is for the backend Uffd");
        let uffd = r#"{"snapshot_path":"/missing/s",
                       "mem_backend":{"backend_type":"Uffd","backend_path":"/missing/h"}}"#;
        api.refuses("PUT", "/snapshot/load", uffd, 400, "cannot open /missing/s: No such file");
        let missing = r#"{"snapshot_path":"/missing/s","mem_file_path":"/m"}"#;
        api.refuses("PUT", "/snapshot/load", missing, 400, "cannot open /missing/s: No such file");
        let packed = |more| format!(r#"{{"snapshot_path":"/s",{more}}}"#);
        api.refuses("PUT", "/snapshot/create", &packed(r#""compress":"gzip""#), 400, "write lz4, zstd");
        api.refuses(
            "PUT",
            "/snapshot/create",
            &packed(r#""chunk_size":65536"#),
            400,
            "chunk_size: needs compress",
        );
        api.refuses(
            "PUT",
            "/snapshot/create",
            &packed(r#""least_saving":5"#),
            400,
            "least_saving: needs compress",
        );
        api.refuses("PUT", "/snapshot/load", &packed(r#""record":"soon""#), 400, "write console, vsock, api");
        api.refuses(
            "PUT",
            "/actions",
            r#"{"action_type":"SendCtrlAltDel"}"#,
            400,
            "cannot send Ctrl-Alt-Del: the VM has not been started",
        );
    }

    #[test]
    fn request_for_a_vm_is_refused_without_one() {
        let api = Serving::start();
        let snapshot = r#"{"snapshot_path":"/s"}"#;
        api.refuses("PUT", "/snapshot/create", snapshot, 400, "the VM has not been started");
        api.refuses(
            "PATCH",
            "/vm",
            r#"{"state":"Paused"}"#,
            400,
            "cannot pause: the VM has not been started",
        );
        api.refuses("PUT", "/actions", r#"{"action_type":"InstanceStart"}"#, 400, "/boot-source");
    }
}
