//! `/v1/vm/network`: the policy of the VM's network interfaces.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use volt_vmm::policy::Policy;

use super::Refusals;
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::Fault;

/// The VM's network.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Network {
    /// The policy. With null, the guest may reach all.
    #[serde(deserialize_with = "Deserialize::deserialize")]
    policy: Option<Policy>,
}

/// Describe the network
#[utoipa::path(get, path = "/v1/vm/network", tag = "vm", responses((status = 200, body = Network), Refusals))]
pub(super) async fn describe(State(api): State<Api>) -> Result<Json<Network>, Fault> {
    let policy = api.call(|slot| Ok(slot.vm("read the VM's policy")?.config().devices.policy)).await?;
    Ok(Json(Network { policy }))
}

/// Change the network
///
/// Connections that the policy denies end at their next packet.
#[utoipa::path(
    put,
    path = "/v1/vm/network",
    tag = "vm",
    request_body = Network,
    responses((status = 204, description = "The policy is in force."), Refusals),
)]
pub(super) async fn change(
    State(api): State<Api>,
    Body(Network { policy }): Body<Network>,
) -> Result<StatusCode, Fault> {
    api.call(|slot| slot.vm("change the VM's policy")?.set_policy(policy)).await?;
    Ok(StatusCode::NO_CONTENT)
}
