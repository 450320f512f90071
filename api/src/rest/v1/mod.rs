//! volt-vmm's own paths, under `/v1`.

pub(crate) mod fork;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use volt_vmm::sandbox::{InForce, in_force};
use volt_vmm::{MemoryUsage, RecordingSummary, RunState, VmConfig};

use super::Api;
use super::body::Body;
use super::error::{Fault, StatusOnly};
use crate::process::start;

pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/boot", put(boot))
        .route("/v1/vm", get(describe))
        .route("/v1/vm/memory", get(memory))
        .route("/v1/vm/rewind", put(rewind))
        .route("/v1/vm/record", put(end_recording))
        .route("/v1/vm/fork", post(fork::fork))
        .route("/v1/stop", put(stop))
        .route("/v1/security", get(security))
}

/// Boots a VM. The body is a configuration file.
async fn boot(State(api): State<Api>, Body(config): Body<VmConfig>) -> StatusOnly {
    api.call(move |slot| slot.start("boot a VM", || start::boot(config)).map(drop)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn describe(State(api): State<Api>) -> Json<Value> {
    let vm = api.slot.peek();
    let state = match vm.as_ref().map(|vm| vm.state()) {
        None => "not started",
        Some(RunState::Running) => "running",
        Some(RunState::Paused) => "paused",
        Some(RunState::Ended) => "ended",
    };
    Json(json!({ "state": state, "config": vm.as_ref().map(|vm| vm.config()) }))
}

/// Describes the memory that the VM holds on the host.
async fn memory(State(api): State<Api>) -> Result<Json<MemoryUsage>, Fault> {
    api.call(|slot| slot.vm("read the VM's memory usage")?.memory_usage()).await.map(Json)
}

/// Rewinds a restored VM to its snapshot, in place.
async fn rewind(State(api): State<Api>) -> Result<Json<Value>, Fault> {
    let rewound = api.call(|slot| slot.vm("rewind")?.rewind()).await?;
    Ok(Json(json!({ "pages": rewound.pages, "paused_us": rewound.paused.as_micros() as u64 })))
}

/// Ends the recording of touched pages, if it has not ended by itself, and describes the working set.
async fn end_recording(State(api): State<Api>) -> Result<Json<RecordingSummary>, Fault> {
    api.call(|slot| slot.vm("end the recording")?.end_recording()).await.map(Json)
}

/// Describes the confinement of the process.
async fn security(State(api): State<Api>) -> Result<Json<InForce>, Fault> {
    // It waits for the opener.
    api.call(|_| Ok(in_force())).await.map(Json)
}

/// Ends the VM and the process at once.
async fn stop(State(api): State<Api>) -> StatusOnly {
    api.call(|slot| slot.vm("stop").map(|vm| vm.stop())).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Serving, say};

    #[test]
    fn missing_vm_is_described() {
        let api = Serving::start();
        assert_eq!(api.ask("GET", "/v1/vm", ""), (200, r#"{"config":null,"state":"not started"}"#.into()));
        api.refuses("PUT", "/v1/stop", "", 400, "cannot stop: the VM has not been started");
    }

    #[test]
    fn unknown_field_is_refused_by_its_name() {
        let api = Serving::start();
        api.refuses("PUT", "/v1/boot", r#"{"boot":{"kernel":"/k"},"vcpu":1}"#, 400, "unknown field `vcpu`");
        api.refuses("PUT", "/v1/boot", r#"{"boot":{"kernle":"/k"}}"#, 400, "unknown field `kernle`");
        api.refuses("PUT", "/v1/boot", "[1]", 400, "invalid");
    }

    #[test]
    fn unknown_path_or_method_is_refused() {
        let api = Serving::start();
        api.refuses("GET", "/nowhere", "", 400, "Invalid request method and/or path: GET /nowhere.");
        api.refuses("PUT", "/v1/boot/", "{}", 404, "/v1/boot/");
        api.refuses("DELETE", "/v1/vm", "", 405, "DELETE is not allowed on /v1/vm");
        api.refuses("GET", "/snapshot/create", "", 400, "path: GET /snapshot/create.");
        api.refuses("PUT", "/vm", "{}", 400, "path: PUT /vm.");
    }

    #[test]
    fn body_beyond_the_limit_is_refused() {
        let api = Serving::start();
        let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(1 << 20));
        let length = long.len();
        let (status, body) = say(
            &api.socket,
            &format!(
                "PUT /v1/boot HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                 Content-Length: {length}\r\n\r\n{long}"
            ),
        );
        assert!(status == 413 && body.contains("longer than 1048576 bytes"), "{status} {body}");
    }

    #[test]
    fn idle_clients_delay_neither_others_nor_the_end() {
        let api = Serving::start();
        let idle: Vec<_> =
            (0..50).map(|_| std::os::unix::net::UnixStream::connect(&api.socket).unwrap()).collect();
        assert_eq!(api.ask("GET", "/", "").0, 200);
        let started = std::time::Instant::now();
        drop(api);
        assert!(started.elapsed() < std::time::Duration::from_secs(3));
        drop(idle);
    }
}
