//! volt-vmm's own paths, under `/v1`, and their description in OpenAPI's form.
//!
//! Paths name things. GET describes one, PUT and POST make one, PATCH changes it, and DELETE ends it. One
//! list of handlers makes the server and the description, so the description cannot lack a path.

pub(crate) mod events;
pub(crate) mod fork;
mod network;
pub(crate) mod operations;
pub(crate) mod snapshots;
pub(crate) mod vm;

use std::sync::OnceLock;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::Html;
use axum::routing::{MethodRouter, get, post, put};
use axum::{Json, Router};
use utoipa::{IntoResponses, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use volt_vmm::VmConfig;
use volt_vmm::sandbox::{InForce, in_force};

use super::Api;
use super::body::Body;
use super::error::{Fault, FaultMessage};

/// Answers of every path beside its own.
#[derive(IntoResponses)]
#[allow(dead_code)] // a description alone
enum Refusals {
    /// The request is refused: a field is wrong, the VM is in another state, or the host refuses.
    #[response(status = 400)]
    Refused(FaultMessage),
    /// The body did not arrive in time.
    #[response(status = 408)]
    TooSlow(FaultMessage),
    /// The body is too long.
    #[response(status = 413)]
    TooLong(FaultMessage),
    /// A bug of volt-vmm.
    #[response(status = 500)]
    Bug(FaultMessage),
}

#[derive(OpenApi)]
#[openapi(
    info(title = "volt-vmm", description = "The API of one microVM, over a unix socket."),
    // No handler leads to the schema of refusals.
    components(schemas(FaultMessage)),
    tags(
        (name = "vm", description = "the VM"),
        (name = "snapshots", description = "snapshots, and the way back to them"),
        (name = "forks", description = "copies of the running VM"),
        (name = "operations", description = "snapshots, forks and loads that are under way"),
        (name = "process", description = "the process around the VM"),
    ),
)]
struct Description;

/// The page that shows the description. It needs no other file.
const PAGE: &str = include_str!("page.html");

/// Serves handlers at their paths, and describes them. The description takes ten times as long to make as the
/// server, and megabytes, so it is made when a client asks for it.
macro_rules! paths {
    ($($path:literal => $($method:ident($($handler:tt)+)),+;)+) => {
        fn served() -> Router<Api> {
            Router::new()$(.route($path, MethodRouter::new()$(.$method($($handler)+))+))+
        }

        fn described() -> utoipa::openapi::OpenApi {
            let router = OpenApiRouter::<Api>::with_openapi(Description::openapi());
            router$(.routes(routes!($($($handler)+),+)))+.split_for_parts().1
        }

        /// The paths and methods that are served.
        #[cfg(test)]
        const SERVED: &[(&str, &[&str])] = &[$(($path, &[$(stringify!($method)),+])),+];
    };
}

paths! {
    "/v1/vm" => get(vm::describe), put(vm::make), patch(vm::change), delete(vm::end);
    "/v1/vm/shutdown" => put(vm::shut_down);
    "/v1/vm/memory" => get(vm::memory);
    "/v1/vm/balloon" => get(vm::balloon);
    "/v1/vm/network" => get(network::describe), put(network::change);
    "/v1/vm/events" => get(events::events);
    "/v1/vm/snapshots" => post(snapshots::create);
    "/v1/vm/snapshots/current" => get(snapshots::progress), delete(snapshots::cancel);
    "/v1/vm/operations" => get(operations::list);
    "/v1/vm/operations/{id}" => delete(operations::cancel);
    "/v1/vm/rewinds" => post(snapshots::rewind);
    "/v1/vm/recording" => delete(snapshots::end_recording);
    "/v1/vm/forks" => post(fork::fork);
    "/v1/security" => get(security);
}

pub(super) fn routes() -> Router<Api> {
    served()
        .merge(former())
        .route("/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], description())))
        .route("/docs", get(async || Html(PAGE)))
}

/// The description as JSON, made once: clients that ask for it at once would else hold up all others.
fn description() -> Bytes {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let make = || described().to_json().unwrap_or_else(|error| unreachable!("its keys are texts: {error}"));
    TEXT.get_or_init(|| make().into()).clone()
}

/// Paths of older versions, which clients may still use.
fn former() -> Router<Api> {
    let boot = async |State(api): State<Api>, Body(config): Body<VmConfig>| vm::boot(api, config).await;
    Router::new()
        .route("/v1/boot", put(boot))
        .route("/v1/vm/rewind", put(snapshots::rewind))
        .route("/v1/vm/record", put(snapshots::end_recording))
        .route("/v1/vm/fork", post(fork::fork))
        .route("/v1/stop", put(vm::end))
}

/// Describe the confinement of the process
#[utoipa::path(
    get,
    path = "/v1/security",
    tag = "process",
    responses((status = 200, body = InForce), Refusals),
)]
async fn security(State(api): State<Api>) -> Result<Json<InForce>, Fault> {
    // It waits for the opener.
    api.call(|_| Ok(in_force())).await.map(Json)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::testing::{Serving, say};
    use super::SERVED;

    #[test]
    fn missing_vm_is_described() {
        let api = Serving::start();
        assert_eq!(
            api.ask("GET", "/v1/vm", ""),
            (200, r#"{"id":"anonymous-instance","state":"not started","config":null}"#.into())
        );
        api.refuses("PUT", "/v1/stop", "", 400, "cannot stop: the VM has not been started");
    }

    #[test]
    fn unknown_field_is_refused_by_its_name() {
        let api = Serving::start();
        api.refuses("PUT", "/v1/boot", r#"{"boot":{"kernel":"/k"},"vcpu":1}"#, 400, "unknown field `vcpu`");
        api.refuses("PUT", "/v1/boot", r#"{"boot":{"kernle":"/k"}}"#, 400, "unknown field `kernle`");
        api.refuses("PUT", "/v1/boot", "[1]", 400, "invalid");
        api.refuses("PUT", "/v1/vm", r#"{"boot":{"kernel":"/k"},"vcpu":1}"#, 400, "unknown field `vcpu`");
        api.refuses("PUT", "/v1/vm", r#"{"snapshot":{"path":"/s","x":1}}"#, 400, "unknown field `x`");
        api.refuses("PUT", "/v1/vm", r#"{"snapshot":{"path":"/s"},"vcpus":1}"#, 400, "unknown field `vcpus`");
        api.refuses("PATCH", "/v1/vm", r#"{"state":"asleep"}"#, 400, "unknown variant `asleep`");
        api.refuses("PUT", "/v1/vm/shutdown", r#"{"timeout":1}"#, 400, "unknown field `timeout`");
        api.refuses(
            "POST",
            "/v1/vm/snapshots",
            r#"{"path":"/s","kind":"half"}"#,
            400,
            "unknown variant `half`",
        );
        api.refuses("POST", "/v1/vm/snapshots", r#"{"path":"/s","chunk_size":1}"#, 400, "needs compress");
        let operation = r#"{"path":"/s","operation":"a/b"}"#;
        api.refuses("POST", "/v1/vm/snapshots", operation, 400, "operation: an id has 1 to 64");
    }

    #[test]
    fn request_for_a_vm_is_refused_without_one() {
        let api = Serving::start();
        for (method, path, body, words) in [
            ("PATCH", "/v1/vm", r#"{"state":"paused"}"#, "cannot pause: the VM has not been started"),
            ("DELETE", "/v1/vm", "", "cannot stop: the VM has not been started"),
            ("PUT", "/v1/vm/shutdown", "", "cannot ask the guest to end: the VM has not been started"),
            ("POST", "/v1/vm/snapshots", r#"{"path":"/s"}"#, "cannot create a snapshot"),
            ("GET", "/v1/vm/snapshots/current", "", "no snapshot is being taken"),
            ("DELETE", "/v1/vm/snapshots/current", "", "no snapshot is being taken"),
            ("DELETE", "/v1/vm/operations/7", "", "cannot cancel operation 7: there is none"),
            ("POST", "/v1/vm/rewinds", "", "cannot rewind: the VM has not been started"),
            ("DELETE", "/v1/vm/recording", "", "cannot end the recording"),
            ("GET", "/v1/vm/memory", "", "has not been started"),
            ("GET", "/v1/vm/balloon", "", "has not been started"),
        ] {
            api.refuses(method, path, body, 400, words);
        }
    }

    /// Collects the values of all `$ref`.
    fn collect_references(value: &serde_json::Value, to: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                to.extend(map.get("$ref").and_then(|name| name.as_str()).map(str::to_owned));
                map.values().for_each(|inner| collect_references(inner, to));
            }
            serde_json::Value::Array(all) => all.iter().for_each(|inner| collect_references(inner, to)),
            _ => {}
        }
    }

    #[test]
    fn description_names_every_path_and_no_former_one() {
        let api = Serving::start();
        let (status, text) = api.ask("GET", "/openapi.json", "");
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &found["openapi"]), (200, &"3.1.0".into()));
        let methods = |path: &serde_json::Value| -> BTreeSet<String> {
            path.as_object().unwrap().keys().cloned().collect()
        };
        let paths = found["paths"].as_object().unwrap();
        let paths: BTreeMap<_, _> = paths.iter().map(|(name, path)| (name.as_str(), methods(path))).collect();
        let served = SERVED
            .iter()
            .map(|(path, methods)| (*path, methods.iter().map(|method| (*method).to_owned()).collect()));
        assert_eq!(paths, served.collect());
        let mut references = Vec::new();
        collect_references(&found, &mut references);
        for reference in &references {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(found.pointer(pointer).is_some(), "{reference}");
        }
        assert!(references.len() > 50, "{references:?}");
        let boot = &found["components"]["schemas"]["VmConfig"]["properties"]["memory_mib"];
        assert_eq!(boot["type"], "integer");
        let (status, page) = api.ask("GET", "/docs", "");
        assert!(status == 200 && page.contains("/openapi.json") && !page.contains("http"), "{page}");
    }

    #[test]
    fn unknown_path_or_method_is_refused() {
        let api = Serving::start();
        api.refuses("GET", "/nowhere", "", 400, "Invalid request method and/or path: GET /nowhere.");
        api.refuses("PUT", "/v1/boot/", "{}", 404, "/v1/boot/");
        api.refuses("POST", "/v1/vm", "{}", 405, "POST is not allowed on /v1/vm");
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
