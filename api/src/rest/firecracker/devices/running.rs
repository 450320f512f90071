//! Firecracker's changes to devices of a running VM: rate limits, a grown or other disk, the balloon.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use volt_vmm::config::devices::BalloonConfig;

use crate::rest::Api;
use crate::rest::body::{Body, Id, OptionalBody};
use crate::rest::error::{Fault, StatusOnly};
use crate::rest::firecracker::devices::check_id;
use crate::rest::firecracker::names::balloon::{
    Balloon, BalloonChange, BalloonStatistics, HintingStart, StatisticsChange,
};
use crate::rest::firecracker::names::devices::{DriveChange, NetworkInterfaceChange};

pub(crate) async fn change_drive(
    State(api): State<Api>,
    Id(id): Id,
    Body(change): Body<DriveChange>,
) -> StatusOnly {
    check_id("drive_id", &id, &change.drive_id)?;
    let DriveChange { drive_id, path_on_host, rate_limiter } = change;
    api.call(move |slot| {
        let vm = slot.vm("change a drive")?;
        if let Some(path) = path_on_host {
            vm.change_disk(&drive_id, &path)?;
        }
        rate_limiter.map_or(Ok(()), |limit| vm.limit_disk(&drive_id, &limit))
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn change_network_interface(
    State(api): State<Api>,
    Id(id): Id,
    Body(change): Body<NetworkInterfaceChange>,
) -> StatusOnly {
    check_id("iface_id", &id, &change.iface_id)?;
    api.call(move |slot| {
        let (receive, transmit) = (change.rx_rate_limiter.as_ref(), change.tx_rate_limiter.as_ref());
        slot.vm("change a network interface")?.limit_network(&change.iface_id, receive, transmit)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets the balloon's target, before or after the start.
pub(crate) async fn change_balloon(State(api): State<Api>, Body(change): Body<BalloonChange>) -> StatusOnly {
    const ACT: &str = "change the balloon";
    if api.slot.peek().is_none() {
        return api.change_balloon_draft(ACT, |balloon| balloon.target_mib = change.amount_mib);
    }
    api.call(move |slot| slot.vm(ACT)?.set_balloon(change.amount_mib)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets the interval of the balloon's statistics, before or after the start.
pub(crate) async fn change_statistics(
    State(api): State<Api>,
    Body(change): Body<StatisticsChange>,
) -> StatusOnly {
    const ACT: &str = "change the balloon's statistics";
    let interval = change.stats_polling_interval_s;
    if api.slot.peek().is_none() {
        return api.change_balloon_draft(ACT, |balloon| balloon.statistics_interval = interval);
    }
    api.call(move |slot| slot.vm(ACT)?.set_balloon_interval(interval)).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Api {
    /// Changes the balloon of a VM that has not started.
    fn change_balloon_draft(&self, act: &'static str, change: impl FnOnce(&mut BalloonConfig)) -> StatusOnly {
        self.change_draft(act, |draft| {
            let balloon = draft.devices.devices.balloon.as_mut().ok_or_else(no_balloon)?;
            change(balloon);
            Ok(())
        })
    }
}

fn no_balloon() -> Fault {
    volt_vmm::Error::Config { field: "balloon", problem: "this VM has no balloon".into() }.into()
}

/// Describes the balloon with its present target.
pub(crate) async fn balloon(State(api): State<Api>) -> Result<Json<Balloon>, Fault> {
    if api.slot.peek().is_none() {
        let config = api.draft().devices.devices.balloon.ok_or_else(no_balloon)?;
        return Ok(Json(config.into()));
    }
    api.call(|slot| {
        let vm = slot.vm("look at the balloon")?;
        let target_mib = vm.balloon()?.target_mib;
        let config = vm.config().devices.balloon.unwrap_or_default();
        Ok(BalloonConfig { target_mib, ..config })
    })
    .await
    .map(|config| Json(config.into()))
}

/// Describes the balloon's statistics, if they are on.
pub(crate) async fn statistics(State(api): State<Api>) -> Result<Json<BalloonStatistics>, Fault> {
    let (status, is_on) = api
        .call(|slot| {
            let vm = slot.vm("look at the balloon")?;
            let config = vm.config().devices.balloon;
            Ok((vm.balloon()?, config.is_some_and(|balloon| balloon.statistics_interval > 0)))
        })
        .await?;
    // As Firecracker describes it.
    let off = "The balloon device statistics were not enabled when the device was configured.";
    if is_on { Ok(Json(status.into())) } else { Err(Fault::refused(off)) }
}

pub(crate) async fn start_hinting(
    State(api): State<Api>,
    OptionalBody(start): OptionalBody<HintingStart>,
) -> StatusOnly {
    api.call(move |slot| slot.vm("start hinting")?.start_hinting(!start.acknowledge_on_stop)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn stop_hinting(State(api): State<Api>) -> StatusOnly {
    api.call(|slot| slot.vm("end hinting")?.stop_hinting()).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn hinting(State(api): State<Api>) -> Result<Json<Value>, Fault> {
    let hinting = api.call(|slot| slot.vm("look at hinting")?.hinting()).await?;
    Ok(Json(json!({ "host_cmd": hinting.host_cmd, "guest_cmd": hinting.guest_cmd })))
}
