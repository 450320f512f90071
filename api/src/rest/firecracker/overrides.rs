//! What is different for a clone, at a load and in a fork: Firecracker's fields and volt-vmm's own, as one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use volt_vmm::config::Overrides;
use volt_vmm::config::devices::NetBackend;
use volt_vmm::config::overrides::NetOverride;

/// Another tap for a network interface.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkOverride {
    iface_id: String,
    host_dev_name: String,
}

/// Another socket for the socket device.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VsockSocket {
    uds_path: PathBuf,
}

/// All that is different, in volt-vmm's words.
pub(crate) fn all(
    mut overrides: Overrides,
    networks: Vec<NetworkOverride>,
    vsock: Option<VsockSocket>,
) -> Overrides {
    overrides.networks.extend(networks.into_iter().map(|network| NetOverride {
        id: network.iface_id,
        backend: Some(NetBackend::Tap(network.host_dev_name)),
        ..NetOverride::default()
    }));
    if let Some(VsockSocket { uds_path }) = vsock {
        overrides.vsock.get_or_insert_default().socket = Some(uds_path);
    }
    overrides
}
