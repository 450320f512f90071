//! The policy of a network device: which frames pass, and the device's own answers.
//!
//! A frame is judged by a copy of its headers, and the backend gets this copy: the guest may change its
//! memory at any time. A frame that the device takes is copied whole. An incoming frame is judged before the
//! guest's memory has it.
//!
//! ```text
//!  guest ──> Filter ──pass──────────────────────────────> backend
//!              ├─stop──> answer ──> guest
//!              └─take──> question:   Names ──> answer ──> guest        (over TCP by NameStreams)
//!                        TLS:        Filter::hold ──copies──> backend
//!                        HTTP:       Relays <──────frames───> backend and guest
//! ```

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smoltcp::wire::IPV6_MIN_MTU;
use volt_policy::{
    Answered, Cause, Copied, Datagram, Filter, Host, Interface, Judge, MOST_CONNECTIONS, Offload, Outcome,
    RequestHead, SavedConnection, SavedPin, Taken, Verdict, reset_for,
};

use super::denials::Denials;
use super::name_streams::NameStreams;
use super::names::{Asker, Names, News};
use super::relay::end::{Endpoint, TcpChecksum};
use super::relay::{RelayCounts, Relays};
use super::{DEFAULT_MTU, NextTurn, SHORTEST_DELAY};
use crate::config::devices::{NetBackend, NetConfig};
use crate::config::network::Mac;
use crate::config::user_network::{self, LONGEST_PACKET};
use crate::counters::policy::{PolicyEvent, PolicyMetrics};
use crate::error::report;
use crate::events::Events;
use crate::paths;

/// Most answers that wait for buffers of the guest, and most frames that wait for room in the backend.
const MOST_ANSWERS: usize = 64;
const MOST_UNSENT: usize = 256;
/// Most resets that wait for room in the backend: of all connections, and as many of their next ones.
const MOST_FAREWELLS: usize = 2 * MOST_CONNECTIONS;
/// Most pins that a snapshot keeps.
const MOST_PINS: usize = 1024;

/// Least time between two looks at the network of the host, where the first one failed.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Guard {
    filter: Filter,
    names: Names,
    streams: NameStreams,
    relays: Relays,
    /// When streams and relays have something to do without a frame.
    due: Option<Instant>,
    answers: VecDeque<Vec<u8>>,
    /// Resets of connections that the guest has lost, for their far sides.
    farewells: VecDeque<Copied>,
    /// Frames for the far side that the device has copied.
    unsent: VecDeque<Copied>,
    /// The backend is passt.
    has_passt: bool,
    /// Whether passt serves IPv4 and IPv6: the host routed them when it started.
    served: Option<(bool, bool)>,
    /// Bytes of copies that the guest's frames have caused once more.
    repeated: u64,
    denials: Denials,
    work: PolicyMetrics,
    /// Pins of a snapshot, until the guest sends its first frame.
    restored_pins: Vec<SavedPin>,
    /// When the network of the host was looked for last.
    looked_at_host: Option<Instant>,
}

/// Frames that a guard has left for the guest and for far sides when its policy went.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    pub to_guest: VecDeque<Vec<u8>>,
    pub to_far: VecDeque<Copied>,
}

/// The fate of a frame of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    Passes,
    Drops,
    /// The device has answered it.
    Answered,
    /// The whole frame is for [`Guard::take`].
    Takes(Taken),
}

impl Guard {
    pub fn new(config: &NetConfig, mac: Mac, judge: Arc<Judge>, events: Arc<Events>) -> Self {
        Self {
            denials: Denials::new(&config.id, events),
            work: PolicyMetrics::default(),
            restored_pins: Vec::new(),
            looked_at_host: None,
            filter: Filter::new(judge, interface(config, mac)),
            names: Names::new(&config.id),
            streams: NameStreams::new(mtu(config)),
            relays: Relays::new(mtu(config), far_mtu(config)),
            due: None,
            answers: VecDeque::new(),
            farewells: VecDeque::new(),
            unsent: VecDeque::new(),
            has_passt: matches!(config.backend, NetBackend::Passt { .. }),
            served: None,
            repeated: 0,
        }
    }

    /// Takes another policy. Connections that it denies end.
    pub fn change(&mut self, judge: Arc<Judge>) {
        let (now, judge) = (Instant::now(), self.of_served(judge));
        for (guest, far) in self.filter.change(judge, now) {
            let reset = self.relays.end(guest, far, now);
            self.unsent.extend(reset.map(Copied::made));
        }
        let Self { relays, filter, denials, .. } = self;
        let resets = relays.end_denied(now, &mut judge_request(filter.judge(), denials));
        self.unsent.extend(resets.into_iter().map(Copied::made));
        self.forget_ended();
    }

    /// The same policy without the routes of the host that passt does not serve.
    fn of_served(&mut self, judge: Arc<Judge>) -> Arc<Judge> {
        let Some((v4, v6)) = judge.routes().filter(|_| self.has_passt) else { return judge };
        let (served_v4, served_v6) = *self.served.get_or_insert((v4, v6));
        Arc::new(judge.with_routes(v4 && served_v4, v6 && served_v6))
    }

    /// Looks at the network of the host again, because another passt has started.
    pub fn look_again(&mut self) {
        self.served = None;
        // Without an answer, the last one stands.
        if let Ok(network) = paths::host_network() {
            let judge = self.filter.judge().with_host(&network);
            self.change(Arc::new(judge));
        }
    }

    /// Takes the bytes that were sent once more since the last call.
    pub fn take_repeated(&mut self) -> u64 {
        std::mem::take(&mut self.repeated)
    }

    /// Begins anew with the hardware address that the guest knows, as when its driver resets the device. The
    /// far sides of the connections that it has had are told that they end.
    pub fn begin_anew(&mut self, mac: Mac) {
        let resets = self.filter.resets_to_far().chain(self.relays.end_far_sides(Instant::now()));
        let room = MOST_FAREWELLS.saturating_sub(self.farewells.len());
        self.farewells.extend(resets.take(room).map(Copied::made));
        self.filter.begin_anew(mac);
        self.names.clear();
        self.streams.clear();
        self.relays.reset();
        self.due = None;
        self.answers.clear();
        self.unsent.clear();
    }

    /// The open connections of TCP, for a snapshot, and the hardware address of the router that they use.
    pub fn save_connections(&self) -> (Option<Mac>, Vec<SavedConnection>) {
        (self.filter.router(), self.filter.save_connections())
    }

    /// Ends with its policy. Resets the connections that cannot go on without it, at both sides. Returns the
    /// frames that are left for the guest and for far sides.
    pub fn retire(mut self) -> Leftovers {
        let router = self.filter.router();
        let (ended, held) = self.filter.end_with_device();
        self.answers.extend(router.iter().flat_map(|router| self.filter.resets_to_guest(&ended, *router)));
        let resets = self.relays.end_far_sides(Instant::now()).into_iter().chain(held);
        self.farewells.extend(resets.into_iter().map(Copied::made));
        self.farewells.extend(self.unsent);
        Leftovers { to_guest: self.answers, to_far: self.farewells }
    }

    /// Begins anew, as [`Guard::begin_anew`]. The guest is told of the end of the connections that it had
    /// when its state was saved, too.
    pub fn end_connections(&mut self, mac: Mac, router: Option<Mac>, saved: &[SavedConnection]) {
        self.begin_anew(mac);
        let saved = &saved[..saved.len().min(MOST_CONNECTIONS)];
        self.answers.extend(router.iter().flat_map(|router| self.filter.resets_to_guest(saved, *router)));
    }

    #[cfg(test)]
    pub fn filter(&mut self) -> &mut Filter {
        &mut self.filter
    }

    /// The pins, for a snapshot.
    pub fn save_pins(&self) -> Vec<SavedPin> {
        if !self.restored_pins.is_empty() {
            return self.restored_pins.clone();
        }
        // Without rules about names they mean nothing.
        let mut pins = match self.filter.judge().has_names() {
            true => self.filter.save_pins(Instant::now()),
            false => Vec::new(),
        };
        pins.truncate(MOST_PINS);
        pins
    }

    /// Takes the pins of a snapshot for a minute from the guest's first frame on, in which their names are
    /// asked for again.
    pub fn restore_pins(&mut self, saved: &[SavedPin]) {
        self.restored_pins = saved.iter().take(MOST_PINS).cloned().collect();
    }

    /// Uses the pins of a snapshot, and asks for their names.
    fn use_restored_pins(&mut self, now: Instant) {
        if !self.restored_pins.is_empty() {
            let saved = std::mem::take(&mut self.restored_pins);
            let names = self.filter.restore_pins(&saved, now);
            self.names.renew(names);
        }
        self.names.renew_some(self.filter.judge(), now);
    }

    /// Reads the network of the host before the first verdict. Nothing passes without it.
    fn knows_host(&mut self, now: Instant) -> bool {
        if self.filter.judge().knows_host() {
            return true;
        }
        if self.looked_at_host.is_some_and(|looked| now < looked + BETWEEN_LOOKS) {
            return false;
        }
        self.looked_at_host = Some(now);
        match paths::host_network() {
            Ok(network) => {
                let judge = self.filter.judge().with_host(&network);
                self.change(Arc::new(judge));
                true
            }
            Err(error) => {
                let what = || "everything: the network of the host cannot be read".to_owned();
                self.denials.tell(format_args!("nothing passes: {}: {}", what(), report(&error)), what);
                false
            }
        }
    }

    /// The fate of a frame of the guest. `head` has its first bytes, or all of `len`.
    pub fn outgoing(&mut self, head: &[u8], len: usize, offload: Offload) -> Passage {
        let now = Instant::now();
        if !self.knows_host(now) {
            return Passage::Drops;
        }
        self.use_restored_pins(now);
        match self.filter.outgoing(head, len, offload, now) {
            Outcome::Pass => Passage::Passes,
            Outcome::Take(taken) => Passage::Takes(taken),
            Outcome::Answer(answer) => {
                self.answer(Some(answer));
                Passage::Answered
            }
            Outcome::Stop(cause, answer) => {
                self.note(&cause, "from the guest");
                self.answer(answer);
                Passage::Drops
            }
        }
    }

    /// Takes a whole frame of the guest.
    pub fn take(&mut self, taken: Taken, copied: &Copied, offload: Offload) {
        let now = Instant::now();
        match taken {
            Taken::Question => self.take_question(&copied.frame, offload, now),
            Taken::Hello => {
                let held = self.filter.hold(copied, offload, now);
                if let Some(cause) = &held.cause {
                    self.note(cause, "from the guest");
                }
                self.answer(held.to_guest);
                let room = MOST_UNSENT.saturating_sub(self.unsent.len());
                let to_far = held.to_far.into_iter().take(room);
                for copied in to_far {
                    if held.is_repeated {
                        self.repeated += copied.frame.len() as u64;
                    }
                    self.unsent.push_back(copied);
                }
            }
            Taken::Request => {
                let is_known = self.relay(&copied.frame, offload, now);
                self.forget_ended();
                if !is_known {
                    // The relay has given it up.
                    self.answer(reset_for(&copied.frame));
                }
            }
        }
    }

    /// Forgets the connections that the relay has ended.
    fn forget_ended(&mut self) {
        for (guest, far) in self.relays.take_ended() {
            self.filter.forget(guest, far);
        }
    }

    /// Gives the relay a frame of a far side.
    fn relay_back(&mut self, frame: &[u8], is_trusted: bool, now: Instant) {
        let Self { relays, filter, denials, .. } = self;
        let mut judge = judge_request(filter.judge(), denials);
        relays.receive_from_far(frame, checksum(is_trusted), now, &mut judge);
        drop(judge);
        self.forget_ended();
    }

    /// Gives the relay a frame of the guest. Returns whether it has a use for it.
    fn relay(&mut self, frame: &[u8], offload: Offload, now: Instant) -> bool {
        let checksum = checksum(offload.checksum.is_some());
        let Self { relays, filter, denials, .. } = self;
        let judge = &mut judge_request(filter.judge(), denials);
        relays.receive_from_guest(frame, checksum, now, judge)
    }

    fn take_question(&mut self, frame: &[u8], offload: Offload, now: Instant) {
        let Some((datagram, message)) = Datagram::parse(frame) else {
            match self.streams.receive(frame, checksum(offload.checksum.is_some()), now) {
                Some(questions) => self.take_questions(questions, now),
                // It is from before a restore.
                None => self.answer(reset_for(frame)),
            }
            return;
        };
        let judge = Arc::clone(self.filter.judge());
        let asker = Asker::Datagram(Box::new(datagram.clone()));
        if let Some(answer) = self.names.take(message, asker, (&judge, &self.denials, &mut self.work), now) {
            self.answer(datagram.answer(&answer));
        }
    }

    /// Takes questions that came over TCP, with the numbers of their connections.
    fn take_questions(&mut self, questions: Vec<(u64, Vec<u8>)>, now: Instant) {
        for (number, message) in questions {
            let judge = Arc::clone(self.filter.judge());
            if let Some(answer) =
                self.names.take(&message, Asker::Stream(number), (&judge, &self.denials, &mut self.work), now)
            {
                self.streams.answer(number, &answer, now);
            }
        }
    }

    /// The fate of a frame for the guest, of which `frame` has all. Its checksum may be the guest's to trust.
    /// A frame that the device takes needs nothing else.
    pub fn incoming(&mut self, frame: &[u8], is_trusted: bool) -> Passage {
        let now = Instant::now();
        if !self.knows_host(now) {
            return Passage::Drops;
        }
        match self.filter.incoming(frame, frame.len(), now) {
            Outcome::Pass => Passage::Passes,
            Outcome::Take(taken) => {
                self.relay_back(frame, is_trusted, now);
                Passage::Takes(taken)
            }
            Outcome::Answer(_) => Passage::Drops, // to frames of the guest alone
            Outcome::Stop(cause, answer) => {
                self.note(&cause, "to the guest");
                self.answer(answer);
                Passage::Drops
            }
        }
    }

    /// Works if it is time.
    pub fn work(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            let questions = self.streams.work(now);
            self.take_questions(questions, now);
            let Self { relays, filter, denials, .. } = self;
            relays.work(now, &mut judge_request(filter.judge(), denials));
            self.forget_ended();
        }
    }

    /// The time of the next [`Guard::work`].
    pub fn next_turn(&mut self, now: Instant) -> NextTurn {
        // Never at once: a guest that takes no frames would keep its device busy. Work that waits already is
        // not put off by another turn.
        let waiting = self.due.filter(|due| *due > now);
        let next = self.streams.next_work(now).into_iter().chain(self.relays.next_work(now)).min();
        let next = next.map(|next| next.max(now + SHORTEST_DELAY));
        self.due = next.map(|next| waiting.map_or(next, |waiting| waiting.min(next)));
        self.due.map_or(NextTurn::Wait, NextTurn::At)
    }

    /// Takes the news of the resolver.
    pub fn listen(&mut self) {
        let judge = Arc::clone(self.filter.judge());
        for news in self.names.news(&judge, &mut self.work) {
            match news {
                News::Answered(Answered { asker, message, truncated, name, addresses, .. }) => {
                    // The guest may use an address as soon as it knows it.
                    self.filter.pin(&name, &addresses, Instant::now());
                    match asker {
                        Asker::Datagram(datagram) => {
                            self.answer(datagram.answer(&truncated.unwrap_or(message)));
                        }
                        Asker::Stream(number) => self.streams.answer(number, &message, Instant::now()),
                        Asker::Device => {}
                    }
                }
                News::HostNetwork(network) => {
                    let judge = self.of_served(Arc::new(self.filter.judge().with_host(&network)));
                    if !judge.is_on_same_host(self.filter.judge()) {
                        self.change(judge);
                    }
                }
            }
        }
    }

    /// The descriptor that is readable when there is news of the resolver, and a number that no other one
    /// had.
    pub fn descriptor(&self) -> Option<(u64, BorrowedFd<'_>)> {
        self.names.descriptor()
    }

    /// The next frame to the guest.
    pub fn next_answer(&mut self) -> Option<Vec<u8>> {
        let answer = self.answers.pop_front().or_else(|| self.streams.next_frame());
        answer.or_else(|| self.relays.next_to_guest())
    }

    /// Whether a frame waits for the guest.
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty() || self.streams.has_waiting() || self.relays.has_frame_to_guest()
    }

    /// The next frame for the far side that the device has copied or made.
    pub fn next_unsent(&mut self) -> Option<&Copied> {
        if self.farewells.is_empty() && self.unsent.is_empty() {
            let frame = self.relays.next_to_far();
            self.unsent.extend(frame.map(Copied::made));
        }
        self.farewells.front().or_else(|| self.unsent.front())
    }

    /// Forgets that frame.
    pub fn sent(&mut self) {
        if self.farewells.pop_front().is_none() {
            self.unsent.pop_front();
        }
    }

    fn note(&mut self, cause: &Cause, direction: &str) {
        let event = match cause {
            Cause::Denied { .. } => PolicyEvent::DeniedFrame,
            Cause::Full => PolicyEvent::NoRoom,
            Cause::Malformed(_) => PolicyEvent::MalformedFrame,
            Cause::Unknown => PolicyEvent::UnknownFrame,
        };
        self.work.add(event, 1);
        match cause {
            Cause::Denied { .. } | Cause::Full => {
                self.denials
                    .tell(format_args!("a frame {direction} is dropped: {cause}"), || cause.to_string());
            }
            Cause::Malformed(_) => {
                self.denials.debug(format_args!("a frame {direction} is dropped: {cause}"))
            }
            Cause::Unknown => {}
        }
    }

    /// Takes the work since the last call.
    pub fn take_work(&mut self) -> PolicyMetrics {
        let RelayCounts { opened, refused, denied, ambiguous } = self.relays.take_counts();
        let mut work = std::mem::take(&mut self.work);
        work.add(PolicyEvent::RelayedConnection, opened);
        work.add(PolicyEvent::NoRoom, refused);
        work.add(PolicyEvent::DeniedRequest, denied + ambiguous);
        work
    }

    /// Keeps a frame for the guest. Without room it is lost: the guest asks again, or waits until its own
    /// limit.
    fn answer(&mut self, answer: Option<Vec<u8>>) {
        self.answers.extend(answer.filter(|_| self.answers.len() < MOST_ANSWERS));
    }
}

/// Judges the host of a request for a far side.
fn judge_request(
    judge: &Judge,
    denials: &Denials,
) -> impl FnMut(&RequestHead, Endpoint) -> Result<(), String> {
    |head, far| {
        let judged = host_of_request(judge, head, far);
        if let Err(why) = &judged {
            let what = || format!("a request to {} port {}: {why}", far.0, far.1);
            denials.tell(format_args!("{} is denied", what()), what);
        }
        judged
    }
}

fn host_of_request(judge: &Judge, head: &RequestHead, far: Endpoint) -> Result<(), String> {
    if head.port != far.1 {
        return Err(format!("the request is for port {}, and goes to port {}", head.port, far.1));
    }
    let name = match &head.host {
        Host::Name(name) => Some(name),
        Host::Address(address) if *address == far.0 => None,
        Host::Address(_) => return Err("the request is for another address than it goes to".to_owned()),
    };
    match judge.named(far, name) {
        Verdict::Allow(_) => Ok(()),
        Verdict::Deny(reason) => Err(reason.to_string()),
    }
}

fn checksum(is_trusted: bool) -> TcpChecksum {
    if is_trusted { TcpChecksum::Trusted } else { TcpChecksum::Verified }
}

/// Bytes of the longest packet of an interface.
fn mtu(config: &NetConfig) -> u16 {
    let default =
        if matches!(config.backend, NetBackend::Passt { .. }) { LONGEST_PACKET } else { DEFAULT_MTU };
    config.mtu.unwrap_or(default)
}

/// The same of packets that the device sends to far sides. It hears of no smaller one on the way, but passt's
/// own sockets do; IPv6 promises this one.
fn far_mtu(config: &NetConfig) -> u16 {
    if matches!(config.backend, NetBackend::Passt { .. }) {
        mtu(config)
    } else {
        mtu(config).min(IPV6_MIN_MTU as u16)
    }
}

/// The interface as the filter knows it. A guest behind a tap has addresses of its owner's choice.
fn interface(config: &NetConfig, mac: Mac) -> Interface {
    let (addresses, forwarded) = (config.addresses.clone(), Vec::new());
    let mut interface = Interface { mac, addresses, is_routed: false, forwarded };
    if config.backend.fixes_addresses() {
        interface.addresses = user_network::guest_addresses();
    }
    if let NetBackend::Passt { forward } = &config.backend {
        interface.is_routed = true;
        interface.forwarded = forward.iter().map(|(_, guest)| *guest).collect();
    }
    interface
}
