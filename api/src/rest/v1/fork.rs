//! `POST /v1/vm/forks`: copies the running VM into processes of their own, each with its own API.

use std::path::PathBuf;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use volt_vmm::Progress;
use volt_vmm::config::Overrides;

use super::Refusals;
use crate::guest_agent;
use crate::process::fork::parent::{ChildSpec, Fork, Forked};
use crate::process::fork::{RequestLimits, parent};
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::Fault;
use crate::rest::firecracker::names::snapshot::{NetworkOverride, VsockSocket, merge_overrides};
use crate::rest::operations::OperationOf;

/// The body of a request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkRequest {
    pub(crate) children: Vec<ChildOfFork>,
    /// Leaves the children paused.
    #[serde(default)]
    pub(crate) paused: bool,
    /// Has the guest's agent run its hooks and freeze the workload first. Each child is woken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) quiesce: bool,
    /// Fails unless the agent of each child wakes its guest whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) require_agent: bool,
    /// The id in `/v1/vm/operations`: up to 64 letters, digits, `_` and `-`. By default it gets a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<String>,
}

/// One of the children.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChildOfFork {
    /// The socket of its API.
    #[schema(value_type = String)]
    pub(crate) api_socket: PathBuf,
    /// The file to which its guest's serial output is appended; discarded if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) serial: Option<PathBuf>,
    /// Its run directory, which a client has claimed for it. Its serial output then goes to the log there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) run_dir: Option<PathBuf>,
    /// Its differences, as in `/snapshot/load`.
    #[serde(default)]
    pub(crate) overrides: Overrides,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) network_overrides: Vec<NetworkOverride>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) vsock_override: Option<VsockSocket>,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Forks {
    /// In the order of the request.
    pub(crate) children: Vec<Forked>,
}

/// Fork the VM into processes of their own, which all run on from the same instant
#[utoipa::path(
    post,
    path = "/v1/vm/forks",
    tag = "forks",
    request_body = ForkRequest,
    responses((status = 200, body = Forks), Refusals),
)]
pub(crate) async fn fork(
    State(api): State<Api>,
    Body(request): Body<ForkRequest>,
) -> Result<Json<Forks>, Fault> {
    let ForkRequest { children, paused, quiesce, require_agent, operation } = request;
    if require_agent && paused {
        let problem = "require_agent: a paused guest does not answer; leave out paused, or this";
        return Err(Fault::refused(problem));
    }
    let progress = Progress::default();
    let operation = api.begin(OperationOf::Fork, operation, &progress)?;
    let wanted: Vec<_> = children
        .into_iter()
        .map(|child| ChildSpec {
            api_socket: child.api_socket,
            serial: child.serial,
            run_dir: child.run_dir,
            overrides: merge_overrides(child.overrides, child.network_overrides, child.vsock_override),
        })
        .collect();
    let limits = RequestLimits { longest_body: api.longest_body, metadata: api.metadata.limit() };
    let forked = api
        .capture(&progress.clone(), move |slot| {
            let _operation = operation;
            let vm = slot.vm("fork the VM")?;
            guest_agent::capture(&vm, quiesce, |note, thaw| {
                let how = Fork { paused, limits, requires_agent: require_agent, note };
                Ok(parent::fork(&vm, wanted, how, &progress, thaw))
            })
        })
        .await?;
    Ok(Json(Forks { children: forked? }))
}

#[cfg(test)]
mod tests {
    use crate::rest::testing::Serving;

    #[test]
    fn invalid_request_is_refused_by_its_field() {
        let api = Serving::start();
        let fork = |body: &str, words: &str| api.refuses("POST", "/v1/vm/forks", body, 400, words);
        fork("{}", "missing field `children`");
        fork(r#"{"children":[{}]}"#, "missing field `api_socket`");
        fork(r#"{"children":[{"api_socket":"/a","console":"/c"}]}"#, "unknown field `console`");
        fork(r#"{"children":[{"api_socket":"/a","overrides":{"disk":[]}}]}"#, "unknown field `disk`");
        fork(r#"{"children":[],"pause":true}"#, "unknown field `pause`");
        fork(r#"{"children":[{"api_socket":"/a"}]}"#, "cannot fork the VM: the VM has not been started");
        api.refuses("GET", "/v1/vm/fork", "", 405, "GET is not allowed");
    }
}
