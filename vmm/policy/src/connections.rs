//! The connections of a guest: what it began, and what came through a forward.
//!
//! Entries expire by looks at them. There is no timer: a full table looks at all of them, once a second at
//! most.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::client_hello::ClientHello;
use crate::frame::{Segment, distance};
use crate::hold::Hold;
use crate::rule::Protocol;

/// Most connections of an interface.
pub const MOST_CONNECTIONS: usize = 8192;
/// How long an entry lasts without a packet: a TCP connection that is open (Linux probes an idle one after
/// two hours, tcp(7)), one that one side has ended, one that opens (Linux gives up after 127 s), one that
/// has ended, and others.
const OPEN: Duration = Duration::from_secs(3 * 3600);
const HALF_OPEN: Duration = Duration::from_secs(300);
const OPENING: Duration = Duration::from_secs(130);
const ENDED: Duration = Duration::from_secs(60);
const ANSWERED: Duration = Duration::from_secs(180);
const ASKED: Duration = Duration::from_secs(30);
/// A full table gives up datagrams without a packet for so long.
const IDLE: Duration = Duration::from_secs(10);
/// Least time between two looks at all entries.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The protocol.
    pub protocol: Protocol,
    /// The guest's address and port. An echo of ICMP has its identifier as the port.
    pub guest: (IpAddr, u16),
    /// The far side's address and port. An echo of ICMP has no port.
    pub far: (IpAddr, u16),
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Open {
        guest_ended: bool,
        far_ended: bool,
    },
    Ended,
    /// The protocol has no connections. Whether both sides have sent.
    Datagram {
        is_answered: bool,
    },
}

/// How the packets of a connection go.
#[derive(Debug)]
pub enum Route {
    /// They pass.
    Direct,
    /// The guest's first bytes are held.
    Held(Box<Hold>),
    /// The device ends the connection at itself, and makes another one to the far side.
    Relayed,
}

/// A connection, as its packets tell.
#[derive(Debug)]
struct Connection {
    state: State,
    route: Route,
    /// The first message of TLS that it was judged by, if it was.
    judged: Option<ClientHello>,
    /// The time of its last packet.
    last: Instant,
    expires: Instant,
    /// It came through a forward.
    is_inbound: bool,
    /// Numbers of the bytes that the guest sends next and expects next.
    guest_next: u32,
    guest_expects: Option<u32>,
}

/// An open connection of TCP, as snapshots keep it: a clone's guest is told that it has ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SavedConnection {
    /// The guest's end.
    pub guest: SocketAddr,
    /// The far side's end.
    pub far: SocketAddr,
    /// Number of the byte that the guest expects next.
    pub expects: u32,
}

/// An open connection of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenConnection {
    /// Its ends, and the number of the byte that the guest expects next.
    pub saved: SavedConnection,
    /// Number of the byte that the far side expects next. `None` if that has a connection with the device.
    pub far_expects: Option<u32>,
    /// Whether bytes would be lost if the device let all pass: it has some that it has acknowledged, or may
    /// have.
    pub needs_device: bool,
}

impl Connection {
    fn touch(&mut self, now: Instant) {
        let time = match self.state {
            State::Opening => OPENING,
            State::Open { guest_ended: true, far_ended: true } | State::Ended => ENDED,
            State::Open { guest_ended: false, far_ended: false } => OPEN,
            State::Open { .. } => HALF_OPEN,
            State::Datagram { is_answered: true } => ANSWERED,
            State::Datagram { is_answered: false } => ASKED,
        };
        (self.last, self.expires) = (now, now + time);
    }

    /// Whether both sides have ended it, or one of them at once.
    fn is_over(&self) -> bool {
        matches!(self.state, State::Ended | State::Open { guest_ended: true, far_ended: true })
    }

    /// Whether a full table can do without it.
    fn is_dispensable(&self, now: Instant) -> bool {
        match self.state {
            State::Opening => true,
            State::Datagram { is_answered } => !is_answered || now >= self.last + IDLE,
            State::Open { .. } | State::Ended => self.is_over(),
        }
    }

    /// Follows a segment of one side.
    fn follow(&mut self, segment: &Segment, is_of_guest: bool) {
        let flags = segment.flags;
        if is_of_guest {
            let is_later = self.guest_expects.is_none() || distance(self.guest_next, segment.end()) > 0;
            self.guest_next = if is_later { segment.end() } else { self.guest_next };
            let known = self.guest_expects.unwrap_or(segment.acknowledged);
            if flags.ack && distance(known, segment.acknowledged) >= 0 {
                self.guest_expects = Some(segment.acknowledged);
            }
        }
        self.state = match self.state {
            _ if flags.rst => State::Ended,
            // The guest has not taken the far side's reset for one of its connection.
            State::Ended if is_of_guest && flags.ack => State::Open { guest_ended: false, far_ended: false },
            // The side that was asked to open answers.
            State::Opening if is_of_guest == self.is_inbound => {
                State::Open { guest_ended: false, far_ended: false }
            }
            state => state,
        };
        if let State::Open { guest_ended, far_ended } = &mut self.state
            && flags.fin
        {
            *if is_of_guest { guest_ended } else { far_ended } = true;
        }
    }
}

/// The side that sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The guest.
    Guest,
    /// The far side.
    Far,
}

/// The table.
#[derive(Debug, Default)]
pub struct Connections {
    entries: HashMap<Ends, Connection>,
    swept: Option<Instant>,
    looked_at_holds: Option<Instant>,
}

impl Connections {
    /// Number of entries, those that have expired too.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Follows a packet of a connection. Returns how it goes, if the table has the connection. A segment that
    /// opens a connection anew, over one that has ended, is none of it.
    pub fn follow(
        &mut self,
        ends: &Ends,
        side: Side,
        segment: Option<&Segment>,
        now: Instant,
    ) -> Option<&mut Route> {
        let Entry::Occupied(known) = self.entries.entry(*ends) else { return None };
        let entry = known.get();
        let opens = segment.is_some_and(|segment| segment.flags.syn && !segment.flags.ack);
        let is_opener = entry.is_inbound == (side == Side::Far);
        if opens && side == Side::Far && !entry.is_inbound {
            // No answer to the guest, and no reason to forget the guest's connection.
            return None;
        }
        if entry.expires <= now || opens && (!is_opener || entry.state != State::Opening) {
            // A new connection over an old one is judged as such.
            known.remove();
            return None;
        }
        let entry = known.into_mut();
        match segment {
            Some(segment) => entry.follow(segment, side == Side::Guest),
            None if !is_opener && matches!(entry.state, State::Datagram { .. }) => {
                entry.state = State::Datagram { is_answered: true };
            }
            None => {}
        }
        entry.touch(now);
        Some(&mut entry.route)
    }

    /// Adds a connection that `side` begins. Returns false if there is no room for it.
    pub fn begin(&mut self, ends: Ends, side: Side, route: Route, now: Instant) -> bool {
        if self.entries.len() >= MOST_CONNECTIONS && !self.sweep(now) {
            return false;
        }
        let state = match ends.protocol {
            Protocol::Tcp => State::Opening,
            Protocol::Udp | Protocol::Icmp => State::Datagram { is_answered: false },
        };
        let mut connection = Connection {
            state,
            route,
            judged: None,
            last: now,
            expires: now,
            is_inbound: side == Side::Far,
            guest_next: 0,
            guest_expects: None,
        };
        connection.touch(now);
        self.entries.insert(ends, connection);
        true
    }

    /// Lets the packets of a held connection pass: its name was judged, and the far side has it.
    pub fn release(&mut self, ends: &Ends) {
        if let Some(entry) = self.entries.get_mut(ends)
            && let Route::Held(hold) = std::mem::replace(&mut entry.route, Route::Direct)
        {
            entry.judged = hold.into_judged();
        }
    }

    /// How the packets of a connection go.
    pub fn route(&mut self, ends: &Ends) -> Option<&mut Route> {
        self.entries.get_mut(ends).map(|entry| &mut entry.route)
    }

    /// Forgets a connection.
    pub fn remove(&mut self, ends: &Ends) {
        self.entries.remove(ends);
    }

    /// The open connections of TCP.
    pub fn open(&self) -> impl Iterator<Item = OpenConnection> {
        self.entries.iter().filter_map(|(ends, entry)| {
            let expects = entry.guest_expects.filter(|_| matches!(entry.state, State::Open { .. }))?;
            let (guest, far) = (ends.guest.into(), ends.far.into());
            let (far_expects, needs_device) = match &entry.route {
                Route::Direct => (Some(entry.guest_next), false),
                Route::Held(hold) => (Some(hold.sent_up_to()), hold.has_copies()),
                Route::Relayed => (None, true),
            };
            Some(OpenConnection { saved: SavedConnection { guest, far, expects }, far_expects, needs_device })
        })
    }

    /// Whether the table has a connection with these ends.
    pub fn has(&self, ends: &Ends) -> bool {
        self.entries.contains_key(ends)
    }

    /// Whether a connection that the guest began leads to an address.
    pub fn lead_to(&self, address: IpAddr, now: Instant) -> bool {
        self.entries.iter().any(|(ends, entry)| {
            ends.far.0 == address && !entry.is_inbound && now < entry.expires && !entry.is_over()
        })
    }

    /// The addresses to which connections lead that the guest began.
    pub fn far_addresses(&self, now: Instant) -> HashSet<IpAddr> {
        let leads = |entry: &Connection| !entry.is_inbound && now < entry.expires && !entry.is_over();
        self.entries.iter().filter(|(_, entry)| leads(entry)).map(|(ends, _)| ends.far.0).collect()
    }

    /// Removes the connections that the guest began and that `is_allowed` refuses, by their ends, their
    /// routes, and the first messages that they were judged by. Returns those that the device relays.
    pub fn retain(
        &mut self,
        mut is_allowed: impl FnMut(&Ends, &Route, Option<&ClientHello>) -> bool,
    ) -> Vec<Ends> {
        let mut relayed = Vec::new();
        self.entries.retain(|ends, entry| {
            let stays = entry.is_inbound || is_allowed(ends, &entry.route, entry.judged.as_ref());
            if !stays && matches!(entry.route, Route::Relayed) {
                relayed.push(*ends);
            }
            stays
        });
        relayed
    }

    /// Ends late holds, and holds of connections that have ended, once a second at most.
    pub fn end_late_holds(&mut self, now: Instant) {
        if self.looked_at_holds.is_some_and(|looked| now < looked + BETWEEN_SWEEPS) {
            return;
        }
        self.looked_at_holds = Some(now);
        let is_over = |entry: &Connection| entry.expires <= now || entry.is_over();
        self.entries.retain(|_, entry| match &entry.route {
            Route::Held(hold) => !hold.is_late(now) && !is_over(entry),
            Route::Direct | Route::Relayed => true,
        });
    }

    /// Removes what has expired. If that gives no room, removes what has ended, was never answered, or is a
    /// datagram of before. Returns whether there is room.
    fn sweep(&mut self, now: Instant) -> bool {
        if self.swept.is_some_and(|swept| now < swept + BETWEEN_SWEEPS) {
            return false;
        }
        self.swept = Some(now);
        self.entries.retain(|_, connection| connection.expires > now);
        if self.entries.len() >= MOST_CONNECTIONS {
            self.entries.retain(|_, connection| !connection.is_dispensable(now));
        }
        self.entries.len() < MOST_CONNECTIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Flags;

    const NONE: Flags = Flags { syn: false, ack: false, fin: false, rst: false, psh: false, urg: false };
    const SYN: Flags = Flags { syn: true, ..NONE };
    const SYN_ACK: Flags = Flags { ack: true, ..SYN };
    const ACK: Flags = Flags { ack: true, ..NONE };
    const FIN: Flags = Flags { fin: true, ..ACK };
    const RST: Flags = Flags { rst: true, ..NONE };

    fn ends(protocol: Protocol, port: u16, number: u32) -> Ends {
        let far = std::net::Ipv4Addr::from_bits(0xc000_0200 + number);
        Ends { protocol, guest: ("10.118.111.15".parse().unwrap(), port), far: (far.into(), 443) }
    }

    fn segment(flags: Flags) -> Segment {
        Segment { source: 0, target: 0, sequence: 0, acknowledged: 0, len: 0, flags }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn connection_of_tcp_lasts_by_its_state() {
        use Side::{Far, Guest};
        let start = Instant::now();
        let ends = ends(Protocol::Tcp, 4000, 1);
        // Segments, and the seconds after the last one at which the connection is still known and is not.
        for (segments, lasts) in [
            (&[][..], 130),
            (&[(Guest, SYN)][..], 130),
            (&[(Far, SYN_ACK), (Guest, ACK)], 3 * 3600),
            (&[(Far, SYN_ACK), (Guest, FIN)], 300),
            (&[(Far, SYN_ACK), (Guest, FIN), (Far, FIN)], 60),
            (&[(Far, SYN_ACK), (Far, RST)], 60),
        ] {
            for (seconds, is_known) in [(lasts - 1, true), (lasts, false)] {
                let mut table = Connections::default();
                assert!(table.begin(ends, Guest, Route::Direct, start));
                for &(side, flags) in segments {
                    assert!(table.follow(&ends, side, Some(&segment(flags)), start).is_some());
                }
                let found = table.follow(&ends, Guest, Some(&segment(ACK)), after(start, seconds)).is_some();
                assert_eq!(found, is_known, "{segments:?} {seconds}");
                assert_eq!(table.len(), usize::from(is_known));
            }
        }
    }

    #[test]
    fn port_that_is_used_again_is_a_new_connection() {
        let start = Instant::now();
        let ends = ends(Protocol::Tcp, 4000, 1);
        let mut table = Connections::default();
        table.begin(ends, Side::Guest, Route::Direct, start);
        assert!(
            table.follow(&ends, Side::Guest, Some(&segment(SYN)), start).is_some(),
            "the same, sent again"
        );
        assert!(table.follow(&ends, Side::Far, Some(&segment(RST)), start).is_some());
        assert!(table.follow(&ends, Side::Guest, Some(&segment(SYN)), start).is_none());
        assert!(table.follow(&ends, Side::Far, Some(&segment(ACK)), start).is_none());
    }

    #[test]
    fn full_table_gives_up_what_is_not_in_use_and_then_refuses() {
        let start = Instant::now();
        let mut table = Connections::default();
        let open = ends(Protocol::Tcp, 1, 0);
        assert!(table.begin(open, Side::Guest, Route::Direct, start));
        assert!(table.follow(&open, Side::Far, Some(&segment(SYN_ACK)), start).is_some());
        for number in 1..100_000 {
            table.begin(ends(Protocol::Tcp, 4000, number), Side::Guest, Route::Direct, start);
        }
        assert_eq!(table.len(), MOST_CONNECTIONS);
        assert!(table.follow(&open, Side::Guest, Some(&segment(ACK)), start).is_some(), "an open one stays");
        // Datagrams in use fill it: each is answered.
        let fill = |table: &mut Connections, seconds| {
            for number in 0..100_000 {
                let ends = ends(Protocol::Udp, 4000, number);
                if table.begin(ends, Side::Guest, Route::Direct, after(start, seconds)) {
                    assert!(table.follow(&ends, Side::Far, None, after(start, seconds)).is_some());
                }
            }
        };
        fill(&mut table, 2);
        assert_eq!(table.len(), MOST_CONNECTIONS);
        let late = ends(Protocol::Udp, 1, 0);
        assert!(!table.begin(late, Side::Guest, Route::Direct, after(start, 4)));
        assert!(table.begin(late, Side::Guest, Route::Direct, after(start, 2 + 10)), "they were idle");
        assert!(table.follow(&open, Side::Guest, Some(&segment(ACK)), after(start, 200)).is_some());
    }

    #[test]
    fn datagram_lasts_longer_once_it_is_answered() {
        let start = Instant::now();
        let ends = ends(Protocol::Udp, 4000, 1);
        for (is_answered, lasts) in [(false, 30), (true, 180)] {
            for (seconds, is_known) in [(lasts - 1, true), (lasts, false)] {
                let mut table = Connections::default();
                table.begin(ends, Side::Guest, Route::Direct, start);
                assert!(!is_answered || table.follow(&ends, Side::Far, None, start).is_some());
                assert_eq!(table.follow(&ends, Side::Guest, None, after(start, seconds)).is_some(), is_known);
            }
        }
    }

    #[test]
    fn open_connections_are_known_with_the_numbers_of_their_next_bytes() {
        let start = Instant::now();
        let mut table = Connections::default();
        let [open, opening, ended] = [1, 2, 3].map(|number| ends(Protocol::Tcp, 4000, number));
        let of_guest =
            |sequence, acknowledged, len, flags| Segment { sequence, acknowledged, len, ..segment(flags) };
        for ends in [open, opening, ended] {
            table.begin(ends, Side::Guest, Route::Direct, start);
            table.follow(&ends, Side::Guest, Some(&of_guest(99, 0, 0, SYN)), start);
        }
        for ends in [open, ended] {
            table.follow(&ends, Side::Far, Some(&segment(SYN_ACK)), start);
        }
        table.follow(&ended, Side::Guest, Some(&of_guest(100, 0, 0, RST)), start);
        // The first segment comes again, late.
        for (sequence, acknowledged, len) in [(100, u32::MAX, 10), (110, 7, 20), (100, u32::MAX, 10)] {
            table.follow(&open, Side::Guest, Some(&of_guest(sequence, acknowledged, len, ACK)), start);
        }
        let (guest, far) = (open.guest.into(), open.far.into());
        let saved = SavedConnection { guest, far, expects: 7 };
        let expected = [OpenConnection { saved, far_expects: Some(130), needs_device: false }];
        assert_eq!(table.open().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn far_side_ends_no_connection_by_a_lone_segment() {
        let start = Instant::now();
        let ends = ends(Protocol::Tcp, 4000, 1);
        let mut table = Connections::default();
        table.begin(ends, Side::Guest, Route::Direct, start);
        assert!(table.follow(&ends, Side::Far, Some(&segment(SYN_ACK)), start).is_some());
        assert!(table.follow(&ends, Side::Far, Some(&segment(SYN)), start).is_none());
        assert!(table.follow(&ends, Side::Guest, Some(&segment(ACK)), start).is_some());
        // A reset with a wrong number: the guest goes on, and so does the entry.
        assert!(table.follow(&ends, Side::Far, Some(&segment(RST)), start).is_some());
        assert!(table.follow(&ends, Side::Guest, Some(&segment(ACK)), start).is_some());
        assert!(table.follow(&ends, Side::Guest, Some(&segment(ACK)), after(start, 3600)).is_some());
    }

    #[test]
    fn side_that_was_connected_to_begins_nothing_over_the_connection() {
        let start = Instant::now();
        let ends = ends(Protocol::Tcp, 80, 1);
        let mut table = Connections::default();
        table.begin(ends, Side::Far, Route::Direct, start);
        assert!(table.follow(&ends, Side::Guest, Some(&segment(SYN_ACK)), start).is_some());
        assert!(table.follow(&ends, Side::Guest, Some(&segment(SYN)), start).is_none());
        assert_eq!(table.len(), 0);
        // The opener begins nothing either, once the connection is open.
        table.begin(ends, Side::Guest, Route::Direct, start);
        assert!(
            table.follow(&ends, Side::Guest, Some(&segment(SYN)), start).is_some(),
            "the same, sent again"
        );
        assert!(table.follow(&ends, Side::Far, Some(&segment(SYN_ACK)), start).is_some());
        assert!(table.follow(&ends, Side::Guest, Some(&segment(SYN)), start).is_none());
    }

    #[test]
    fn new_policy_ends_what_the_guest_began_and_is_denied_now() {
        let start = Instant::now();
        let mut table = Connections::default();
        let [own, other, forwarded] = [1, 2, 3].map(|number| ends(Protocol::Tcp, 80, number));
        table.begin(own, Side::Guest, Route::Direct, start);
        table.begin(other, Side::Guest, Route::Direct, start);
        table.begin(forwarded, Side::Far, Route::Direct, start);
        table.retain(|ends, _, _| *ends == own);
        let mut is_known = |ends| table.follow(ends, Side::Far, None, start).is_some();
        assert_eq!([&own, &other, &forwarded].map(&mut is_known), [true, false, true]);
    }
}
