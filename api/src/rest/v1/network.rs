//! `/v1/vm/network`: the policy of the VM's network interfaces.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use volt_vmm::policy::Policy;

use super::Refusals;
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::Fault;

/// The VM's network.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Network {
    /// The policy, if there is one. Without it, the guest may reach all.
    policy: Option<Policy>,
}

/// Describe the policy of the network
#[utoipa::path(get, path = "/v1/vm/network", tag = "vm", responses((status = 200, body = Network), Refusals))]
pub(super) async fn describe(State(api): State<Api>) -> Result<Json<Network>, Fault> {
    let policy = api.call(|slot| Ok(slot.vm("read the VM's policy")?.config().devices.policy)).await?;
    Ok(Json(Network { policy }))
}

/// Replace the policy of the network
///
/// Connections that it denies end at their next packet.
#[utoipa::path(
    put,
    path = "/v1/vm/network",
    tag = "vm",
    request_body = Policy,
    responses((status = 204, description = "The policy is in force."), Refusals),
)]
pub(super) async fn change(State(api): State<Api>, Body(policy): Body<Policy>) -> Result<StatusCode, Fault> {
    set(api, Some(policy)).await
}

/// Remove the policy of the network
#[utoipa::path(
    delete,
    path = "/v1/vm/network",
    tag = "vm",
    responses((status = 204, description = "The guest may reach all."), Refusals),
)]
pub(super) async fn open(State(api): State<Api>) -> Result<StatusCode, Fault> {
    set(api, None).await
}

async fn set(api: Api, policy: Option<Policy>) -> Result<StatusCode, Fault> {
    api.call(|slot| slot.vm("change the VM's policy")?.set_policy(policy)).await?;
    Ok(StatusCode::NO_CONTENT)
}
