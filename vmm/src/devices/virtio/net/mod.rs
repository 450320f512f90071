//! The network device (virtio 1.2, section 5.1): frames between the guest's two queues and a host backend.
//!
//! ```text
//!            queue 1 ──transmit──>            ┌── tap: the host's network stack
//!  driver                           Backend ──┤
//!            queue 0 <──receive───            ├── nat: the same, in a namespace of the VM
//!                 │                           └── passt: a process that needs no privileges
//!                 │
//!                 ├── guard: lets through what the VM's policy allows, if it has one
//!                 │     └── names: answers the guest's questions, by a resolver
//!                 ├── link_service: answers DHCP, solicitations of routers and questions, with nat
//!                 └── metadata: a service of the device itself, if the VM has one
//! ```
//!
//! The device watches the backend for frames while the guest has buffers, and for room while a frame of the
//! guest waits. Frames stay in the queues or in the backend, so nothing in flight has to be saved. The
//! exception is a received frame that waits for buffers of the guest: a clone does not get it, as it gets no
//! later frame either.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::Level;
use rustix::event::epoll::EventFlags;
use serde::{Deserialize, Serialize};
use volt_policy::{Judge, Policy, SavedConnection, SavedPin};

use super::watch::Watch;
use super::{DeviceFailed, DeviceIo, DeviceKind, NextTurn, VirtioDevice, WakeReason};
use crate::config::devices::{NetBackend, NetConfig, RateLimit};
use crate::config::metadata::MetadataConfig;
use crate::config::network::Mac;
use crate::counters::device::{DeviceOperations, OperationKind};
use crate::devices::log_limit::LogLimit;
use crate::error::{Error, Result, report};
use crate::events::Events;
use crate::paths;
use crate::persist::Persist;

mod backend;
mod backoff;
mod denials;
mod guard;
mod header;
mod link_answers;
mod link_service;
pub(crate) mod metadata;
mod name_streams;
mod names;
mod nat;
pub(crate) mod passt;
mod pieces;
mod receive;
mod relay;
mod restarts;
mod services;
mod tap;
#[cfg(test)]
mod tests;
mod transmit;
#[cfg(any(test, feature = "fuzzing"))]
mod wire;

use backend::Backend;
use guard::{Guard, Leftovers};
use link_service::LinkService;
use metadata::MetadataService;
use passt::Passt;
use receive::Receiver;
use restarts::Restarts;
use services::Services;
use tap::Tap;
use transmit::Transmitter;

/// `VIRTIO_NET_F_*`, as bits.
mod feature {
    pub const CSUM: u64 = 1;
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const MTU: u64 = 1 << 3;
    pub const MAC: u64 = 1 << 5;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    /// Work that one side may leave to the other.
    pub const OFFLOAD: u64 = CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | HOST_TSO4 | HOST_TSO6;
}

/// `status` in the configuration space.
const LINK_UP: u16 = 1;
/// Bytes of the shortest frame: an Ethernet header.
const MIN_FRAME: usize = 14;
/// MTU of an interface that tells its guest none.
const DEFAULT_MTU: u16 = 1500;
/// Shortest delay before work that needs no frame.
const SHORTEST_DELAY: Duration = Duration::from_millis(1);
/// Frames per turn and direction at most.
const MAX_FRAMES_PER_TURN: usize = 256;
/// Operations as the counters name them, with the numbers of their queues.
const OPERATIONS: &[OperationKind] = &[
    OperationKind { name: "receive", header: header::LEN },
    OperationKind { name: "transmit", header: header::LEN },
];
/// Numbers of the descriptors of the backend and of the resolver in the watch.
const BACKEND: u64 = 0;
const RESOLVER: u64 = 1;

/// A network device.
#[derive(Debug)]
pub struct Net {
    // Configuration.
    name: String,
    offload: bool,
    // Glue.
    backend: Box<dyn Backend>,
    watch: Option<Watch>,
    watched_events: EventFlags,
    /// The number of the resolver that is watched.
    watched_resolver: Option<u64>,
    receiver: Receiver,
    transmitter: Transmitter,
    services: Services,
    /// The backend is alive.
    connected: bool,
    restarts: Restarts,
    log: LogLimit,
    // Volatile.
    mac: Mac,
    mtu: Option<u16>,
    link: bool,
}

/// State that the guest knows.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetState {
    mac: Mac,
    mtu: Option<u16>,
    link: bool,
    /// Addresses that names of the policy were resolved to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pins: Vec<SavedPin>,
    /// The guest has solicited the router that the device is part of.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_solicited: bool,
    /// Hardware address of the router that the guest uses, and the connections that it has through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    router: Option<Mac>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    connections: Vec<SavedConnection>,
}

/// Reason for the end of a turn.
#[derive(Debug)]
enum TurnEnd {
    /// Nothing to do until the driver notifies or the backend is ready.
    Ready,
    /// Nothing to do until then, the driver notifies or the backend is ready.
    At(Instant),
    /// More work is left.
    Again,
    /// The backend has gone away.
    Gone(io::Error),
}

impl From<NextTurn> for TurnEnd {
    fn from(next: NextTurn) -> Self {
        match next {
            NextTurn::Wait => Self::Ready,
            NextTurn::At(time) => Self::At(time),
            NextTurn::Again => Self::Again,
        }
    }
}

/// Makes a policy ready for all interfaces of a VM, so many. The network of this host is read at the first
/// frame: a restore does not pay for that.
///
/// # Errors
/// The policy is refused.
pub(crate) fn judge_of_start(policy: &Policy, interfaces: usize) -> Result<Arc<Judge>> {
    let judge = Judge::without_host(policy).map(|judge| Arc::new(judge.for_interfaces(interfaces)));
    judge.map_err(|problem| Error::config("policy", problem.to_string()))
}

/// Makes a policy ready for all interfaces of a VM that runs, so many. It closes the addresses of this host.
///
/// # Errors
/// The policy is refused, or the network of this host cannot be read.
pub(crate) fn judge(policy: &Policy, interfaces: usize) -> Result<Arc<Judge>> {
    let judge = judge_of_start(policy, interfaces)?;
    let network = paths::host_network()
        .map_err(|source| Error::host("read the network of this host, which a policy closes", source))?;
    Ok(Arc::new(judge.with_host(&network)))
}

impl Net {
    /// Connects to the backend that `config` names.
    ///
    /// # Errors
    /// [`Error::Config`] if a field has a value that is not allowed, and errors of the host.
    pub fn open(config: &NetConfig) -> Result<Self> {
        let refused = |problem| Error::config("networks", problem);
        config.validate().map_err(refused)?;
        let mac = config.hardware_address().map_err(refused)?;
        let mut services = Services::default();
        let backend: Box<dyn Backend> = match &config.backend {
            NetBackend::Tap(name) => Box::new(Tap::open(name)?),
            NetBackend::TapDescriptor(number) => Box::new(Tap::of_descriptor(*number)?),
            NetBackend::Passt { forward } => {
                let NetConfig { mtu, dns_forward, .. } = *config;
                let options = passt::Options { forward: forward.clone(), mtu, dns_forward };
                Box::new(Passt::start(&options, mac)?)
            }
            NetBackend::Nat {} => {
                let (tap, link) = nat::open(config)?;
                services.link = Some(Box::new(LinkService::new(&config.id, link)));
                Box::new(tap)
            }
        };
        Ok(Self { services, ..Self::new(config, mac, backend) })
    }

    fn new(config: &NetConfig, mac: Mac, backend: Box<dyn Backend>) -> Self {
        Self {
            name: config.id.clone(),
            offload: config.offload && backend.offloads(),
            backend,
            watch: None,
            watched_events: EventFlags::empty(),
            watched_resolver: None,
            receiver: Receiver::new(&config.receive_limit),
            transmitter: Transmitter::new(&config.transmit_limit),
            services: Services::default(),
            connected: true,
            restarts: Restarts::default(),
            log: LogLimit::new(),
            mac,
            mtu: config.mtu,
            link: true,
        }
    }

    /// Answers requests to the metadata service.
    pub(crate) fn serve_metadata(&mut self, config: &MetadataConfig) {
        self.services.metadata = Some(Box::new(MetadataService::new(config, self.mtu)));
    }

    /// Lets through only what a policy allows. Without one, all passes. Denials are events of the VM.
    pub(crate) fn obey(&mut self, config: &NetConfig, judge: Option<&Arc<Judge>>, events: &Arc<Events>) {
        match (&mut self.services.guard, judge) {
            (Some(guard), Some(judge)) => guard.change(Arc::clone(judge)),
            (guard, judge) => {
                if let Some(gone) = guard.take() {
                    let Leftovers { to_guest, to_far } = gone.retire();
                    self.services.leftovers.to_guest.extend(to_guest);
                    self.services.leftovers.to_far.extend(to_far);
                }
                let new =
                    |judge| Box::new(Guard::new(config, self.mac, Arc::clone(judge), Arc::clone(events)));
                self.services.guard = judge.map(new);
            }
        }
        if let Some(service) = &mut self.services.link {
            service.answer_questions(judge.is_none());
        }
    }

    /// Changes the rate limits of both directions.
    pub fn limit(&mut self, receive: &RateLimit, transmit: &RateLimit) {
        self.receiver.limiter.change(receive);
        self.transmitter.limiter.change(transmit);
    }

    /// Connects to one end of a socket. Returns the other end, too.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn on_wire(config: &NetConfig) -> (Self, std::os::unix::net::UnixDatagram) {
        let (wire, other) = wire::wire();
        (Self::new(config, crate::config::mac::from_id(&config.id), Box::new(wire)), other)
    }

    /// Transmits and receives, as far as `cause` makes either useful.
    fn exchange(
        &mut self,
        cause: WakeReason,
        io: &mut DeviceIo<'_>,
    ) -> std::result::Result<NextTurn, DeviceFailed> {
        let ready = matches!(cause, WakeReason::Ready(_));
        if matches!(cause, WakeReason::Ready(RESOLVER)) {
            self.services.listen();
        }
        let mut next = self.restart(io);
        let has_room = self.transmitter.blocked || self.has_unsent();
        if !ready || has_room && !self.transmitter.failing {
            let services = &mut self.services;
            let turn_end = self.transmitter.turn(&mut *self.backend, services, self.connected, io)?;
            next = next.sooner(self.apply(turn_end, io));
        }
        let answers = self.services.work(Instant::now());
        // The host may have answered the sent frames already. One interrupt for both is cheaper than two.
        if self.connected && (ready || answers || self.receiver.due || self.transmitter.has_sent) {
            let turn_end = self.receiver.turn(&mut *self.backend, &mut self.services, io)?;
            next = next.sooner(self.apply(turn_end, io));
        }
        next = next.sooner(self.services.next_turn(Instant::now())).sooner(self.send_own(io));
        self.services.count(io);
        io.interrupt_if_wanted()?;
        self.log_errors();
        Ok(next)
    }

    /// Sends the frames that the guard has made by now, and asks when it has something to do.
    fn send_own(&mut self, io: &mut DeviceIo<'_>) -> NextTurn {
        let mut next = NextTurn::Wait;
        if !self.transmitter.blocked
            && !self.transmitter.failing
            && let Some(turn_end) =
                self.transmitter.send_copies(&mut *self.backend, &mut self.services, self.connected, io)
        {
            next = self.apply(turn_end, io);
        }
        match &mut self.services.guard {
            Some(guard) => next.sooner(guard.next_turn(Instant::now())),
            None => next,
        }
    }

    /// Returns whether the backend has to send the rest of a frame.
    fn has_unsent(&self) -> bool {
        self.connected && self.backend.has_unsent()
    }

    fn log_errors(&mut self) {
        let (received, sent) = (self.receiver.error.take(), self.transmitter.error.take());
        for (act, error) in [("receive", received), ("send", sent)] {
            if let Some(error) = error {
                self.log.warn(format_args!("{}: cannot {act} a frame: {error}", self.name));
            }
        }
    }

    fn apply(&mut self, turn_end: TurnEnd, io: &mut DeviceIo<'_>) -> NextTurn {
        match turn_end {
            TurnEnd::Ready => NextTurn::Wait,
            TurnEnd::At(time) => NextTurn::At(time),
            TurnEnd::Again => NextTurn::Again,
            TurnEnd::Gone(error) => {
                let is_news = self.restarts.ended(Instant::now());
                // A host that is connected to nothing is no fault: an image's VM runs there, too.
                let is_fault = error.kind() != ErrorKind::NotConnected;
                let level = if is_news && is_fault { Level::Warn } else { Level::Info };
                self.log.log(level, format_args!("{}: the link is down: {}", self.name, report(&error)));
                self.connected = false;
                self.show_link(io);
                // Frames that waited for room in the backend are dropped now.
                NextTurn::Again
            }
        }
    }

    /// Connects a backend anew that has ended, if it can be, and when it is time. Connections of the guest
    /// end.
    fn restart(&mut self, io: &mut DeviceIo<'_>) -> NextTurn {
        let Some(at) = self.restarts.at else { return NextTurn::Wait };
        if at > Instant::now() {
            return NextTurn::At(at);
        }
        self.restarts.at = None;
        match self.backend.restart(self.mac) {
            None => NextTurn::Wait,
            Some(Ok(())) => {
                self.log.log(Level::Info, format_args!("{}: the link is up again", self.name));
                self.connected = true;
                self.restarts.succeeded(Instant::now());
                if let Some(guard) = &mut self.services.guard {
                    // First, since the look may end some without a word to the guest.
                    let (router, connections) = guard.save_connections();
                    guard.look_again();
                    guard.end_connections(self.mac, router, &connections);
                }
                if let Err(error) = self.backend.begin(io.features & feature::OFFLOAD, self.mac) {
                    return self.apply(TurnEnd::Gone(error), io);
                }
                self.receiver.begin();
                self.show_link(io);
                NextTurn::Again
            }
            Some(Err(error)) => {
                let delay = self.restarts.failed(Instant::now());
                log::warn!("{}: the link stays down for {delay:?}: {}", self.name, report(&error));
                NextTurn::At(Instant::now() + delay)
            }
        }
    }

    /// Updates the link state that the guest sees.
    fn show_link(&mut self, io: &mut DeviceIo<'_>) {
        if self.link != self.connected {
            self.link = self.connected;
            io.config_changed = true;
        }
    }

    /// Stops watching the backend. The worker does not ask a failed device, so an event would repeat without
    /// end.
    fn stop_watching(&mut self) {
        let resolver = self.services.resolver();
        if let (Some(watch), Some((number, descriptor))) = (&self.watch, resolver)
            && self.watched_resolver == Some(number)
        {
            let _ = watch.remove(&descriptor); // cannot fail: it is watched
        }
        if let Some(watch) = self.watch.take().filter(|_| !self.watched_events.is_empty()) {
            let _ = watch.remove(&self.backend.descriptor()); // cannot fail: it is watched
        }
        self.watched_events = EventFlags::empty();
        self.watched_resolver = None;
    }

    /// Watches the resolver, which may have begun or ended.
    fn watch_resolver(&mut self) -> std::result::Result<(), DeviceFailed> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let resolver = self.services.resolver();
        let number = resolver.map(|(number, _)| number);
        if number == self.watched_resolver {
            return Ok(());
        }
        // One that has ended was closed, and is not watched any more.
        let added = resolver.map(|(_, descriptor)| watch.add(&descriptor, RESOLVER, EventFlags::IN));
        self.watched_resolver = number;
        added.unwrap_or(Ok(())).map_err(|_| DeviceFailed("the host cannot watch the resolver"))
    }

    /// Watches the backend for the events that the device can use, and for nothing else. A ready event that
    /// is not used would wake the device again and again, and a backend that has gone away stays ready.
    fn update_watch(&mut self) -> std::result::Result<(), DeviceFailed> {
        self.watch_resolver()?;
        let Some(watch) = &self.watch else { return Ok(()) };
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, self.connected && !self.receiver.starved && !self.receiver.limited);
        let room = self.transmitter.blocked || self.has_unsent();
        wanted.set(EventFlags::OUT, self.connected && room && !self.transmitter.failing);
        if wanted == self.watched_events {
            return Ok(());
        }
        let fd = self.backend.descriptor();
        let done = if self.watched_events.is_empty() {
            watch.add(&fd, BACKEND, wanted)
        } else if wanted.is_empty() {
            watch.remove(&fd)
        } else {
            watch.change(&fd, BACKEND, wanted)
        };
        self.watched_events = wanted;
        done.map_err(|_| DeviceFailed("the host cannot watch the network backend"))
    }
}

impl VirtioDevice for Net {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 1, queues: &[256, 256] }
    }

    fn operations(&self) -> DeviceOperations {
        DeviceOperations { operations: OPERATIONS, queues: None }
    }

    fn features(&self) -> u64 {
        let offload = if self.offload { feature::OFFLOAD } else { 0 };
        let mtu = if self.mtu.is_some() { feature::MTU } else { 0 };
        feature::MAC | feature::STATUS | feature::MRG_RXBUF | offload | mtu
    }

    /// `struct virtio_net_config`, up to `mtu`.
    fn config(&self) -> Vec<u8> {
        let status = if self.link { LINK_UP } else { 0 };
        let queue_pairs = 1;
        let mut config = self.mac.to_vec();
        for field in [status, queue_pairs, self.mtu.unwrap_or(0)] {
            config.extend(field.to_le_bytes());
        }
        config
    }

    fn begin(&mut self, io: &mut DeviceIo<'_>, watch: &Watch) -> std::result::Result<(), DeviceFailed> {
        (self.watch, self.watched_events) = (Some(watch.clone()), EventFlags::empty());
        self.watched_resolver = None;
        self.receiver.begin();
        if self.connected
            && let Err(error) = self.backend.begin(io.features & feature::OFFLOAD, self.mac)
        {
            self.apply(TurnEnd::Gone(error), io);
        }
        self.show_link(io);
        self.update_watch()
    }

    fn work(
        &mut self,
        cause: WakeReason,
        io: &mut DeviceIo<'_>,
    ) -> std::result::Result<NextTurn, DeviceFailed> {
        let done = self.exchange(cause, io).and_then(|next| self.update_watch().map(|()| next));
        if done.is_err() {
            self.stop_watching();
        }
        done
    }

    fn end(&mut self, _: &mut DeviceIo<'_>) -> std::result::Result<(), DeviceFailed> {
        self.stop_watching();
        let (received, sent) = (self.receiver.dropped, self.transmitter.dropped);
        if received + sent > 0 {
            log::debug!("{}: dropped so far: {received} frames to the guest, {sent} from it", self.name);
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.stop_watching();
        self.receiver.reset();
        self.services.reset(self.mac);
    }
}

impl Persist for Net {
    type State = NetState;

    fn save(&self) -> Result<NetState> {
        let Self {
            name: _,
            offload: _,
            backend: _,
            watch: _,
            watched_events: _,
            watched_resolver: _,
            receiver: _,
            transmitter: _,
            services: Services { metadata: _, guard, link: link_service, leftovers: _ },
            connected: _,
            restarts: _,
            log: _,
            mac,
            mtu,
            link,
        } = self;
        let pins = guard.as_ref().map_or_else(Vec::new, |guard| guard.save_pins());
        let has_solicited = link_service.as_ref().is_some_and(|service| service.is_solicited());
        let connections = guard.as_ref().map(|guard| guard.save_connections());
        let (router, connections) = connections.unwrap_or_default();
        Ok(NetState { mac: *mac, mtu: *mtu, link: *link, pins, has_solicited, router, connections })
    }

    /// The guest keeps the address that it knows, and no connection to the metadata service.
    fn restore(&mut self, state: &NetState) -> Result<()> {
        let NetState { mac, mtu, link, pins, has_solicited, router, connections } = state;
        (self.mac, self.mtu, self.link) = (*mac, *mtu, *link);
        if let Some(service) = &mut self.services.metadata {
            service.reset();
        }
        if let Some(guard) = &mut self.services.guard {
            guard.end_connections(*mac, *router, connections);
            guard.restore_pins(pins);
        }
        let solicited = self.services.link.iter_mut().filter(|_| *has_solicited);
        solicited.for_each(|service| service.advertise_again());
        Ok(())
    }
}
