//! A network of the host's kernel with address translation ([`crate::nat`]), as the other end of a device.

use volt_policy::ROUTER;

use super::link_answers::{LINK_LOCAL, Link};
use super::tap::Tap;
use crate::config::devices::NetConfig;
use crate::config::user_network::{ETHERNET_PACKET, IPV4, IPV6};
use crate::error::{Error, Result};
use crate::nat::NatSettings;
use crate::paths;

/// Makes the network of a device. It ends with the tap.
///
/// # Errors
/// [`Error::Host`] names what the host lacks.
pub(super) fn open(config: &NetConfig) -> Result<(Tap, Link)> {
    let failed = |source| Error::host(format!("make the network of {} (nat)", config.id), source);
    let mtu = config.mtu.unwrap_or(ETHERNET_PACKET);
    // The resolver's addresses are the router's too: it has to answer for them on the link.
    let addresses = vec![
        (IPV4.gateway.into(), IPV4.prefix),
        (IPV4.resolver.into(), IPV4.prefix),
        (IPV6.gateway.into(), IPV6.prefix),
        (IPV6.resolver.into(), IPV6.prefix),
        (LINK_LOCAL.into(), 64),
    ];
    let made = paths::make_nat(&NatSettings { mac: ROUTER, addresses, mtu }).map_err(failed)?;
    let tap = Tap::of_own(made.tap).map_err(failed)?;
    Ok((tap, Link { router: ROUTER, mtu, has_v6: made.has_v6 }))
}
