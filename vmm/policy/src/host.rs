//! The host's network, as far as a policy has to know it.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The network of a host.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct HostNetwork {
    /// Its addresses other than loopback ones, as networks: a route may give a host a whole one.
    pub addresses: Vec<IpNet>,
    /// Whether it has a default route of IPv4.
    pub routes_v4: bool,
    /// Whether it has a default route of IPv6.
    pub routes_v6: bool,
}
