//! `POST /v1/vm/fork`: the running VM becomes more of its kind, each in a process of its own with an API of its own.

use std::path::PathBuf;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use volt_vmm::config::Overrides;

use crate::process::fork::parent;
use crate::process::fork::parent::{Forked, Wanted};
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::Fault;
use crate::rest::firecracker::names;
use crate::rest::firecracker::names::{NetworkOverride, VsockSocket};

/// The request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fork {
    pub(crate) children: Vec<ChildOfFork>,
    /// Let the children stand still until they are resumed.
    #[serde(default)]
    pub(crate) paused: bool,
}

/// One of the children.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChildOfFork {
    /// Where it serves its API.
    pub(crate) api_socket: PathBuf,
    /// The file that its guest's serial output is added to. Without one it is discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) serial: Option<PathBuf>,
    /// What is different, as `/snapshot/load` has it.
    #[serde(default)]
    pub(crate) overrides: Overrides,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) network_overrides: Vec<NetworkOverride>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) vsock_override: Option<VsockSocket>,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Forks {
    /// In the order of the request.
    pub(crate) children: Vec<Forked>,
}

pub(crate) async fn fork(State(api): State<Api>, Body(request): Body<Fork>) -> Result<Json<Forks>, Fault> {
    let Fork { children, paused } = request;
    let wanted: Vec<_> = children
        .into_iter()
        .map(|child| Wanted {
            api_socket: child.api_socket,
            serial: child.serial,
            overrides: names::merge_overrides(child.overrides, child.network_overrides, child.vsock_override),
        })
        .collect();
    let forked = api
        .call(move |slot| {
            let vm = slot.vm("fork the VM")?;
            Ok(parent::fork(&vm, wanted, paused))
        })
        .await?;
    Ok(Json(Forks { children: forked? }))
}

#[cfg(test)]
mod tests {
    use crate::rest::testing::Serving;

    #[test]
    fn refuses_by_field_what_it_does_not_know_and_what_needs_a_vm() {
        let api = Serving::start();
        let fork = |body: &str, words: &str| api.refuses("POST", "/v1/vm/fork", body, 400, words);
        fork("{}", "missing field `children`");
        fork(r#"{"children":[{}]}"#, "missing field `api_socket`");
        fork(r#"{"children":[{"api_socket":"/a","console":"/c"}]}"#, "unknown field `console`");
        fork(r#"{"children":[{"api_socket":"/a","overrides":{"disk":[]}}]}"#, "unknown field `disk`");
        fork(r#"{"children":[],"pause":true}"#, "unknown field `pause`");
        fork(r#"{"children":[{"api_socket":"/a"}]}"#, "cannot fork the VM: the VM has not been started");
        api.refuses("GET", "/v1/vm/fork", "", 405, "GET is not allowed");
    }
}
