//! The interface of localhost, and the network interface that the job configures.

mod netlink;

use std::fs;
use std::io;
use std::path::PathBuf;

use volt_job::job::{Address, Network};

use netlink::{Index, Netlink};

const INTERFACES: &str = "/sys/class/net";

/// Brings up localhost, to which Linux gives its addresses, and the interface of the job. Returns the
/// failures.
pub(super) fn configure(network: Option<&Network>) -> Vec<String> {
    let netlink = match Netlink::open() {
        Ok(netlink) => netlink,
        Err(error) => return vec![format!("cannot configure the network: {error}")],
    };
    let localhost = index("lo").and_then(|lo| netlink.bring_up(lo));
    let localhost = localhost.err().map(|error| format!("cannot set up the interface lo: {error}"));
    localhost.into_iter().chain(network.into_iter().flat_map(|network| set_up(&netlink, network))).collect()
}

/// Configures the interface of the job. A failed step is no reason to leave out the others: a kernel may lack
/// IPv6.
fn set_up(netlink: &Netlink, network: &Network) -> Vec<String> {
    let Network { mac, mtu, addresses, gateways } = network;
    let found = match find(mac) {
        Some(name) => index(&name).map(|index| (name, index)),
        None => Err(io::Error::other("the kernel has no such; a module of the initramfs may be missing")),
    };
    let (name, interface) = match found {
        Ok(found) => found,
        Err(error) => return vec![format!("cannot find the network interface {mac}: {error}")],
    };
    let mut problems = Vec::new();
    let mut note = |act: String, done: io::Result<()>| {
        problems.extend(done.err().map(|error| format!("cannot {act} of {name}: {error}")));
    };
    // Advertisements of routers would add further addresses. A kernel without IPv6 lacks the file.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), "0");
    if let Some(mtu) = mtu {
        note(format!("set the MTU {mtu}"), netlink.set_mtu(interface, *mtu));
    }
    note("start the link".to_owned(), netlink.bring_up(interface));
    for Address { address, prefix } in addresses {
        note(format!("add the address {address}"), netlink.add_address(interface, *address, *prefix));
    }
    for gateway in gateways {
        note(format!("add the gateway {gateway}"), netlink.add_default_route(interface, *gateway));
    }
    problems
}

/// Returns the name of the interface with this hardware address.
fn find(mac: &str) -> Option<String> {
    let mut names =
        fs::read_dir(INTERFACES).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find(|name| read(name, "address").is_ok_and(|address| address == mac))
}

fn index(name: &str) -> io::Result<Index> {
    read(name, "ifindex")?.parse().map_err(io::Error::other)
}

fn read(name: &str, property: &str) -> io::Result<String> {
    let path: PathBuf = [INTERFACES, name, property].iter().collect();
    Ok(fs::read_to_string(path)?.trim_end().to_owned())
}
