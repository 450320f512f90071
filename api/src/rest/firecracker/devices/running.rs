//! Firecracker's changes to devices of a running VM: rate limits, a grown disk, the balloon.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use volt_vmm::BalloonStatus;
use volt_vmm::config::devices::BalloonConfig;

use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::{Fault, StatusOnly};
use crate::rest::firecracker::devices::check_id;
use crate::rest::firecracker::names::devices::{Balloon, BalloonChange, DriveChange, NetworkInterfaceChange};

pub(crate) async fn change_drive(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(change): Body<DriveChange>,
) -> StatusOnly {
    check_id("drive_id", &id, &change.drive_id)?;
    let DriveChange { drive_id, path_on_host, rate_limiter } = change;
    api.call(move |slot| {
        let vm = slot.vm("change a drive")?;
        if let Some(path) = path_on_host {
            // The same path asks for the file's new length.
            let disks = vm.config().devices.disks;
            if disks.iter().any(|disk| disk.id == drive_id && disk.path != path) {
                let problem = format!(
                    "{path}: a running VM keeps its drive's file; give the same path to read the file's new \
                     size"
                );
                return Err(volt_vmm::Error::Config { field: "path_on_host", problem: problem.into() });
            }
            vm.resize_disk(&drive_id)?;
        }
        rate_limiter.map_or(Ok(()), |limit| vm.limit_disk(&drive_id, &limit))
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn change_network_interface(
    State(api): State<Api>,
    Path(id): Path<String>,
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

pub(crate) async fn change_balloon(State(api): State<Api>, Body(change): Body<BalloonChange>) -> StatusOnly {
    api.call(move |slot| slot.vm("change the balloon")?.set_balloon(change.amount_mib)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Describes the balloon with its present target.
pub(crate) async fn balloon(State(api): State<Api>) -> Result<Json<Balloon>, Fault> {
    api.call(|slot| {
        let vm = slot.vm("look at the balloon")?;
        let target_mib = vm.balloon()?.target_mib;
        let config = vm.config().devices.balloon.unwrap_or_default();
        Ok(BalloonConfig { target_mib, ..config })
    })
    .await
    .map(|config| Json(config.into()))
}

/// Describes the balloon's statistics: Firecracker's fields, and volt-vmm's counts of returned pages.
pub(crate) async fn statistics(State(api): State<Api>) -> Result<Json<Value>, Fault> {
    let BalloonStatus { target_mib, actual_mib, returned_pages, ignored_pages, statistics } =
        api.call(|slot| slot.vm("look at the balloon")?.balloon()).await?;
    let mut answer = json!({
        "target_mib": target_mib,
        "actual_mib": actual_mib,
        "target_pages": target_mib * 256,
        "actual_pages": actual_mib * 256,
        "returned_pages": returned_pages,
        "ignored_pages": ignored_pages,
    });
    if let (Value::Object(answer), Ok(Value::Object(guest))) = (&mut answer, serde_json::to_value(statistics))
    {
        answer.extend(guest);
    }
    Ok(Json(answer))
}

pub(crate) async fn start_hinting(State(api): State<Api>) -> StatusOnly {
    api.call(|slot| slot.vm("start hinting")?.start_hinting()).await?;
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
