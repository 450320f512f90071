//! The network of a VM that runs an image: process 1 configures an interface whose other end is passt or nat.
//! An image configures one with a tap by itself, such as by DHCP.

use std::net::IpAddr;

use volt_job::job::{Address, Network};
use volt_vmm::config::Devices;
use volt_vmm::config::devices::{NetBackend, NetConfig};
use volt_vmm::config::user_network::{ETHERNET_PACKET, IPV4, IPV6, LONGEST_PACKET};

use crate::failure::Failure;

/// Adds an interface with passt, if the configuration has none.
pub(super) fn add_default(networks: &mut Vec<NetConfig>) {
    if networks.is_empty() {
        networks.push(NetConfig::new("eth0", NetBackend::Passt { forward: Vec::new() }));
    }
}

/// Describes the first interface with passt or nat to process 1. Lets passt forward questions for
/// names.
///
/// # Errors
/// The hardware address of the interface is none.
pub(super) fn of(networks: &mut [NetConfig]) -> Result<Option<Network>, Failure> {
    let mut networks = networks.iter_mut();
    let longest = |network: &NetConfig| match network.backend {
        NetBackend::Passt { .. } => Some(LONGEST_PACKET),
        NetBackend::Nat {} => Some(ETHERNET_PACKET),
        _ => None,
    };
    let Some((network, longest)) = networks.find_map(|network| longest(network).map(|mtu| (network, mtu)))
    else {
        return Ok(None);
    };
    // With nat, the device answers. A clone may have passt.
    network.dns_forward = true;
    let mac =
        network.hardware_address().map_err(|problem| Failure::config("networks", problem.to_string()))?;
    let address = |address, prefix| Address { address, prefix };
    Ok(Some(Network {
        mac: mac.map(|byte| format!("{byte:02x}")).join(":"),
        mtu: Some(network.mtu.unwrap_or(longest)),
        addresses: vec![address(IPV4.address.into(), IPV4.prefix), address(IPV6.address.into(), IPV6.prefix)],
        gateways: vec![IPV4.gateway.into(), IPV6.gateway.into()],
    }))
}

/// Closes the surroundings of the host, unless the user chose another policy or refuses any. The other side
/// of a tap decides what the guest reaches.
pub(super) fn close_surroundings(devices: &mut Devices, refuses_policy: bool) {
    let mut backends = devices.networks.iter().map(|network| &network.backend);
    if !refuses_policy && !devices.networks.is_empty() && backends.all(NetBackend::fixes_addresses) {
        devices.policy.get_or_insert_default();
    }
}

/// Returns the lines of `/etc/resolv.conf`.
pub(super) fn resolvers() -> Vec<String> {
    let resolvers: [IpAddr; 2] = [IPV4.resolver.into(), IPV6.resolver.into()];
    resolvers.map(|address| format!("nameserver {address}")).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passt(id: &str) -> NetConfig {
        NetConfig::new(id, NetBackend::Passt { forward: Vec::new() })
    }

    #[test]
    fn image_without_a_network_gets_one_and_others_keep_theirs() {
        let tap = NetConfig::new("eth0", NetBackend::Tap("tap0".to_owned()));
        for (mut networks, expected) in [(vec![], vec![passt("eth0")]), (vec![tap.clone()], vec![tap])] {
            add_default(&mut networks);
            assert_eq!(networks, expected);
        }
    }

    #[test]
    fn only_the_first_interface_with_passt_is_configured() {
        let tap = NetConfig::new("eth0", NetBackend::Tap("tap0".to_owned()));
        assert_eq!(of(&mut []).unwrap(), None);
        assert_eq!(of(&mut [tap.clone()]).unwrap(), None);
        let mut networks = [tap, passt("eth1").mac("02:00:00:00:0A:01").mtu(1400), passt("eth2")];
        let network = of(&mut networks).unwrap().unwrap();
        assert_eq!((network.mac.as_str(), network.mtu), ("02:00:00:00:0a:01", Some(1400)));
        assert_eq!(networks.map(|network| network.dns_forward), [false, true, false]);
    }

    #[test]
    fn interface_with_nat_is_configured_as_one_with_passt() {
        let mut networks = [NetConfig::new("eth0", NetBackend::Nat {})];
        let network = of(&mut networks).unwrap().unwrap();
        let behind_passt = of(&mut [passt("eth0")]).unwrap().unwrap();
        assert_eq!((network.mtu, networks[0].dns_forward), (Some(1500), true));
        assert_eq!((network.addresses, network.gateways), (behind_passt.addresses, behind_passt.gateways));
    }

    #[test]
    fn surroundings_are_closed_unless_the_user_says_otherwise() {
        let tap = NetConfig::new("eth1", NetBackend::Tap("tap0".to_owned()));
        let own = || {
            Some(volt_vmm::policy::Policy { denial: volt_vmm::policy::Denial::Drop, ..Default::default() })
        };
        for (networks, policy, refuses, expected) in [
            (vec![], None, false, None),
            (vec![passt("eth0")], None, false, Some(Default::default())),
            (vec![passt("eth0")], None, true, None),
            (vec![NetConfig::new("eth0", NetBackend::Nat {})], None, false, Some(Default::default())),
            (vec![passt("eth0")], own(), false, own()),
            (vec![passt("eth0"), tap], None, false, None),
        ] {
            let mut devices = Devices { networks, policy, ..Devices::default() };
            close_surroundings(&mut devices, refuses);
            assert_eq!(devices.policy, expected);
        }
    }

    #[test]
    fn all_vms_have_equal_addresses_and_the_address_of_their_device() {
        let [one, other] = ["a", "b"].map(|id| of(&mut [passt(id)]).unwrap().unwrap());
        assert_eq!((&one.addresses, &one.gateways), (&other.addresses, &other.gateways));
        assert_ne!(one.mac, other.mac);
        assert_eq!(one.mtu, Some(65_520));
        assert_eq!(resolvers(), ["nameserver 10.118.111.3", "nameserver fd76:6f6c:7400::3"]);
    }
}
