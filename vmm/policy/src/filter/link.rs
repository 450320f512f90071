//! The link of a guest: ARP, neighbours, groups and DHCP. These pass whatever the policy says, in their usual
//! forms alone.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use etherparse::icmpv6;

use super::{Filter, Outcome, drop_of};
use crate::frame::{Arp, Frame, Mac, Malformed, Packet, Transport, is_link_local};
use crate::reply;

/// Ports of DHCP (RFC 2131, section 4.1) and DHCPv6 (RFC 8415, section 7.2): those of clients and servers.
pub(super) const DHCP: [u16; 2] = [68, 67];
pub(super) const DHCP6: [u16; 2] = [546, 547];
/// All servers of DHCPv6 on a link, all nodes and all routers.
const DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Time for answers of DHCP.
const ASKS: Duration = Duration::from_secs(60);
/// Most bytes of messages that pass whatever the policy says: a padded frame of ARP, the body of a message of
/// neighbour discovery, and one of DHCP.
pub(super) const LONGEST_ARP: usize = 60;
const LONGEST_DISCOVERY: usize = 64;
const LONGEST_DHCP: usize = 1472;
/// Most neighbours that are remembered.
pub(super) const MOST_NEIGHBOURS: usize = 32;
/// Messages about groups: a router's question, and a guest's reports (RFC 2710, RFC 3810).
pub(super) const QUERY: u8 = icmpv6::TYPE_MULTICAST_LISTENER_QUERY;
const REPORTS: [u8; 3] =
    [icmpv6::TYPE_MULTICAST_LISTENER_REPORT, icmpv6::TYPE_MULTICAST_LISTENER_REDUCTION, 143];

impl Filter {
    /// Whether a message of ARP speaks of the guest alone. A probe has no address yet.
    pub(super) fn is_own_arp(&self, arp: &Arp) -> bool {
        let is_own = arp.sender.is_unspecified() || self.may_send_from(arp.sender.into());
        arp.is_usual && arp.sender_mac == self.interface.mac && is_own
    }

    /// Whether the guest may have an address. If its own are not known, those of the host are foreign anyway.
    pub(super) fn may_send_from(&self, source: IpAddr) -> bool {
        match &self.interface.addresses[..] {
            [] => !self.judge.is_foreign(source),
            own => {
                let is_near = is_link_local_v6(source) && !self.judge.is_foreign(source);
                own.iter().any(|net| net.contains(&source)) || is_near
            }
        }
    }

    pub(super) fn may_report(&self, source: Ipv6Addr, kind: u8) -> bool {
        REPORTS.contains(&kind) && (source.is_unspecified() || self.may_send_from(source.into()))
    }

    /// Judges a datagram of DHCP. A client without an address has 0.0.0.0.
    pub(super) fn of_dhcp(&mut self, packet: &Packet, now: Instant) -> Outcome {
        if !packet.source.is_unspecified() && !self.may_send_from(packet.source) {
            return drop_of(Malformed::Address);
        }
        if packet.payload.1 - packet.payload.0 > LONGEST_DHCP {
            return drop_of(Malformed::Length);
        }
        self.asks_until = Some(now + ASKS);
        Outcome::Pass
    }

    /// Remembers an address on the link: the hop limit has proved it.
    pub(super) fn remember(&mut self, address: IpAddr) {
        let IpAddr::V6(v6) = address else { return };
        let is_of_no_use = is_link_local(v6) || v6.is_unspecified() || v6.is_multicast();
        if !self.interface.addresses.is_empty() || is_of_no_use {
            return;
        }
        self.neighbours.retain(|other| *other != v6);
        self.neighbours.push_back(v6);
        if self.neighbours.len() > MOST_NEIGHBOURS {
            self.neighbours.pop_front();
        }
    }

    /// Judges a message about neighbours or routers (RFC 4861, section 4). `::` is valid as its source.
    pub(super) fn of_discovery(&self, frame: &Frame, packet: &Packet, head: &[u8]) -> Outcome {
        if !packet.source.is_unspecified() && !self.may_send_from(packet.source) {
            return drop_of(Malformed::Address);
        }
        let (IpAddr::V6(target), Transport::Icmp { kind, code: 0, .. }) = (packet.target, packet.transport)
        else {
            return drop_of(Malformed::Neighbour);
        };
        let (from, to) = packet.payload;
        if to - from > LONGEST_DISCOVERY || !self.is_discovered_at(kind, target, frame.target) {
            return drop_of(Malformed::Neighbour);
        }
        let Some(body) = head.get(from..to) else { return drop_of(Malformed::Length) };
        // A solicitation of routers has options alone. Others have an address before them.
        let (address, options) = match kind {
            icmpv6::TYPE_ROUTER_SOLICITATION => (None, body),
            _ => match body.split_first_chunk::<16>() {
                Some((address, options)) => (Some(Ipv6Addr::from(*address)), options),
                None => return drop_of(Malformed::Length),
            },
        };
        let advertises = kind == icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT;
        let is_own = address.is_none_or(|address| !advertises || self.may_send_from(address.into()));
        if !is_own || !self.are_own(options) {
            return drop_of(Malformed::Neighbour);
        }
        let asked = address.filter(|_| kind == icmpv6::TYPE_NEIGHBOR_SOLICITATION);
        self.of_neighbour(target.into(), || reply::to_solicitation(frame.source, packet.source, asked?))
    }

    /// The fate of a guest's question for a neighbour, with the device's answer if it is a question. Behind
    /// the host's own sockets, a version of IP without a route has no neighbours: the guest would wait for
    /// seconds before its programs hear of it. With an answer it sends packets, which are rejected.
    pub(super) fn of_neighbour(
        &self,
        of_version: IpAddr,
        answer: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Outcome {
        let is_lost = self.interface.is_routed && !self.judge.is_routed(of_version);
        is_lost.then(answer).flatten().map_or(Outcome::Pass, Outcome::Answer)
    }

    /// Whether a message of this type goes to an address, and to a hardware address, where it belongs.
    pub(super) fn is_discovered_at(&self, kind: u8, target: Ipv6Addr, mac: Mac) -> bool {
        let [.., high, low] = target.segments();
        let is_solicited = target == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low) && high >> 8 == 0xff;
        let is_group = match kind {
            icmpv6::TYPE_ROUTER_SOLICITATION => target == ALL_ROUTERS,
            icmpv6::TYPE_NEIGHBOR_SOLICITATION => is_solicited,
            _ => target == ALL_NODES,
        };
        let [_, _, _, _, _, _, _, _, _, _, _, _, a, b, c, d] = target.octets();
        let is_near = match &self.interface.addresses[..] {
            _ if is_link_local(target) => true,
            [] => self.neighbours.contains(&target),
            own => own.iter().any(|net| net.contains(&IpAddr::V6(target))),
        };
        is_near || is_group && mac == [0x33, 0x33, a, b, c, d]
    }

    /// Whether the hardware addresses in options are the guest's (RFC 4861, section 4.6.1).
    pub(super) fn are_own(&self, mut options: &[u8]) -> bool {
        while let [kind, units, ..] = *options {
            let Some((option, rest)) = options.split_at_checked(usize::from(units) * 8) else { return false };
            if option.is_empty() || matches!(kind, 1 | 2) && option.get(2..8) != Some(&self.interface.mac[..])
            {
                return false;
            }
            options = rest;
        }
        options.is_empty()
    }
}

/// Whether a datagram is one of a client of DHCP to all servers of its link. One to a single server could
/// have any content, for any machine.
pub(super) fn is_dhcp(ports: [u16; 2], target: IpAddr) -> bool {
    match target {
        IpAddr::V4(v4) => ports == DHCP && v4.is_broadcast(),
        IpAddr::V6(v6) => ports == DHCP6 && v6 == DHCP6_SERVERS,
    }
}

/// Whether a datagram is one of a server of DHCP. A server of DHCPv6 is on the link.
pub(super) fn is_dhcp_answer(ports: [u16; 2], source: IpAddr) -> bool {
    match source {
        IpAddr::V4(_) => ports == DHCP,
        IpAddr::V6(v6) => ports == DHCP6 && is_link_local(v6),
    }
}

/// Messages about neighbours and routers that a guest may send, and those that it may get. A guest is no
/// router, and none redirects it.
pub(super) const SENT: [u8; 3] = [
    icmpv6::TYPE_ROUTER_SOLICITATION,
    icmpv6::TYPE_NEIGHBOR_SOLICITATION,
    icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT,
];
pub(super) const GOT: [u8; 3] = [
    icmpv6::TYPE_ROUTER_ADVERTISEMENT,
    icmpv6::TYPE_NEIGHBOR_SOLICITATION,
    icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT,
];

/// Whether a message is one of these, and from this link.
pub(super) fn is_discovery(packet: &Packet, kind: u8, kinds: [u8; 3]) -> bool {
    packet.target.is_ipv6() && packet.hop_limit == reply::OF_LINK && kinds.contains(&kind)
}

fn is_link_local_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if is_link_local(v6))
}
