//! The network device (virtio 1.2, section 5.1): frames between the guest's two queues and a connection of the host.
//!
//! ```text
//!            queue 1 ──transmit──>            ┌── tap: the host's network stack
//!  driver                           Backend ──┤
//!            queue 0 <──receive───            └── passt: a process that needs no privileges
//! ```
//!
//! The backend is watched for frames while the guest has buffers, and for room while a frame of the guest's waits. Frames
//! stay in the queues or in the backend, so there is nothing under way to be saved, but for one that came in and waits for the
//! guest to make room: a clone does not have it, as it has none of those that came in afterwards.

use std::io;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use serde::{Deserialize, Serialize};

use super::watch::Watch;
use super::{Broken, Cause, Io, Kind, Next, VirtioDevice};
use crate::config::devices::{NetBackend, NetConfig, RateLimit};
use crate::devices::log_limit::LogLimit;
use crate::error::{Error, Result, report};
use crate::persist::Persist;

mod address;
mod backend;
mod backoff;
mod header;
mod passt;
mod pieces;
mod receive;
mod tap;
#[cfg(test)]
mod tests;
mod transmit;
#[cfg(any(test, feature = "fuzzing"))]
mod wire;

use address::Mac;
use backend::Backend;
use passt::Passt;
use receive::Receiver;
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
    /// Work that may be left to the other side.
    pub const OFFLOAD: u64 = CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | HOST_TSO4 | HOST_TSO6;
}

/// `status` in the configuration space.
const LINK_UP: u16 = 1;
/// Least bytes of a frame: an Ethernet header.
const SHORTEST: usize = 14;
/// The most frames of one turn, one way.
const FRAMES: usize = 256;
/// The shortest MTU that an IPv4 host may have.
const LEAST_MTU: u16 = 68;
/// The number of the backend's descriptor in the watch.
const BACKEND: u64 = 0;

/// The device.
#[derive(Debug)]
pub struct Net {
    // Configuration.
    name: String,
    offload: bool,
    // Glue.
    backend: Box<dyn Backend>,
    watch: Option<Watch>,
    watched: EventFlags,
    receiver: Receiver,
    transmitter: Transmitter,
    /// The backend has not gone away.
    connected: bool,
    log: LogLimit,
    // Volatile.
    mac: Mac,
    mtu: Option<u16>,
    link: bool,
}

/// What the guest was told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetState {
    mac: Mac,
    mtu: Option<u16>,
    link: bool,
}

/// Why a turn ended.
#[derive(Debug)]
enum Pause {
    /// There is nothing to do until the driver notifies or the backend is ready.
    Ready,
    /// The same, or until this time.
    At(Instant),
    /// There is more to do.
    Again,
    /// The backend is no more.
    Gone(io::Error),
}

impl Net {
    /// Connects to what `config` names.
    ///
    /// # Errors
    /// [`Error::Config`] for a field that holds what it may not, and what the host refused.
    pub fn open(config: &NetConfig) -> Result<Self> {
        let mac = match &config.mac {
            Some(text) => address::parse(text)?,
            None => address::from_id(&config.id),
        };
        if let Some(mtu) = config.mtu.filter(|mtu| *mtu < LEAST_MTU) {
            return Err(Error::config("networks", format!("mtu {mtu}: {LEAST_MTU} at least")));
        }
        let backend: Box<dyn Backend> = match &config.backend {
            NetBackend::Tap(name) => Box::new(Tap::open(name)?),
            NetBackend::Passt { forward } => Box::new(Passt::start(forward, config.mtu, mac)?),
        };
        Ok(Self::new(config, mac, backend))
    }

    fn new(config: &NetConfig, mac: Mac, backend: Box<dyn Backend>) -> Self {
        Self {
            name: config.id.clone(),
            offload: config.offload && backend.offloads(),
            backend,
            watch: None,
            watched: EventFlags::empty(),
            receiver: Receiver::new(&config.receive_limit),
            transmitter: Transmitter::new(&config.transmit_limit),
            connected: true,
            log: LogLimit::new(),
            mac,
            mtu: config.mtu,
            link: true,
        }
    }

    /// Changes how fast the guest may receive and send.
    pub fn limit(&mut self, receive: &RateLimit, transmit: &RateLimit) {
        self.receiver.limiter.change(receive);
        self.transmitter.limiter.change(transmit);
    }

    /// Connects to a socket, of which the other end comes back too.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn on_wire(config: &NetConfig) -> (Self, std::os::unix::net::UnixDatagram) {
        let (wire, other) = wire::wire();
        (Self::new(config, address::from_id(&config.id), Box::new(wire)), other)
    }

    /// Both ways, as far as `cause` makes it worth a look.
    fn exchange(&mut self, cause: Cause, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        let ready = matches!(cause, Cause::Ready(_));
        let mut next = Next::Wait;
        let has_room = self.transmitter.blocked || self.has_unsent();
        if !ready || has_room && !self.transmitter.failing {
            let pause = self.transmitter.turn(&mut *self.backend, self.connected, io)?;
            next = self.follow(pause, io);
        }
        // The host may have answered what was sent already. One interrupt for both is cheaper than one for each.
        if self.connected && (ready || self.receiver.due || self.transmitter.has_sent) {
            let pause = self.receiver.turn(&mut *self.backend, io)?;
            next = sooner(next, self.follow(pause, io));
        }
        io.announce()?;
        self.log_errors();
        Ok(next)
    }

    /// The backend has a part of a frame yet to send.
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

    fn follow(&mut self, pause: Pause, io: &mut Io<'_>) -> Next {
        match pause {
            Pause::Ready => Next::Wait,
            Pause::At(time) => Next::At(time),
            Pause::Again => Next::Again,
            Pause::Gone(error) => {
                log::warn!("{}: the link is down: {}", self.name, report(&error));
                self.connected = false;
                self.show_link(io);
                // What waited for room in the backend waits for nothing now.
                Next::Again
            }
        }
    }

    /// Tells the guest whether the link is up, if it does not know.
    fn show_link(&mut self, io: &mut Io<'_>) {
        if self.link != self.connected {
            self.link = self.connected;
            io.config_changed = true;
        }
    }

    /// Watches nothing any more. A device that is broken is not asked when what it watches is ready, however often.
    fn look_away(&mut self) {
        if let Some(watch) = self.watch.take().filter(|_| !self.watched.is_empty()) {
            let _ = watch.remove(&self.backend.descriptor()); // it is watched
        }
        self.watched = EventFlags::empty();
    }

    /// Watches the backend for what there is use for, and nothing else: what is ready and not taken would wake the device
    /// again and again, and what has gone away is ready for ever.
    fn attend(&mut self) -> std::result::Result<(), Broken> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, self.connected && !self.receiver.starved && !self.receiver.limited);
        let room = self.transmitter.blocked || self.has_unsent();
        wanted.set(EventFlags::OUT, self.connected && room && !self.transmitter.failing);
        if wanted == self.watched {
            return Ok(());
        }
        let fd = self.backend.descriptor();
        let done = if self.watched.is_empty() {
            watch.add(&fd, BACKEND, wanted)
        } else if wanted.is_empty() {
            watch.remove(&fd)
        } else {
            watch.change(&fd, BACKEND, wanted)
        };
        self.watched = wanted;
        done.map_err(|_| Broken("its connection cannot be watched"))
    }
}

fn sooner(one: Next, other: Next) -> Next {
    match (one, other) {
        (Next::Wait, next) | (next, Next::Wait) => next,
        (Next::At(one), Next::At(other)) => Next::At(one.min(other)),
        _ => Next::Again,
    }
}

impl VirtioDevice for Net {
    fn kind(&self) -> Kind {
        Kind { id: 1, queues: &[256, 256] }
    }

    fn features(&self) -> u64 {
        let offload = if self.offload { feature::OFFLOAD } else { 0 };
        let mtu = if self.mtu.is_some() { feature::MTU } else { 0 };
        feature::MAC | feature::STATUS | feature::MRG_RXBUF | offload | mtu
    }

    /// `struct virtio_net_config`, as far as `mtu`.
    fn config(&self) -> Vec<u8> {
        let status = if self.link { LINK_UP } else { 0 };
        let queue_pairs = 1;
        let mut config = self.mac.to_vec();
        for field in [status, queue_pairs, self.mtu.unwrap_or(0)] {
            config.extend(field.to_le_bytes());
        }
        config
    }

    fn begin(&mut self, io: &mut Io<'_>, watch: &Watch) -> std::result::Result<(), Broken> {
        (self.watch, self.watched) = (Some(watch.clone()), EventFlags::empty());
        self.receiver.begin();
        if self.connected
            && let Err(error) = self.backend.begin(io.features & feature::OFFLOAD, self.mac)
        {
            self.follow(Pause::Gone(error), io);
        }
        self.show_link(io);
        self.attend()
    }

    fn work(&mut self, cause: Cause, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        let done = self.exchange(cause, io).and_then(|next| self.attend().map(|()| next));
        if done.is_err() {
            self.look_away();
        }
        done
    }

    fn end(&mut self, _: &mut Io<'_>) -> std::result::Result<(), Broken> {
        self.look_away();
        let (received, sent) = (self.receiver.dropped, self.transmitter.dropped);
        if received + sent > 0 {
            log::debug!("{}: dropped so far: {received} frames to the guest, {sent} from it", self.name);
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.look_away();
        self.receiver.reset();
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
            watched: _,
            receiver: _,
            transmitter: _,
            connected: _,
            log: _,
            mac,
            mtu,
            link,
        } = self;
        Ok(NetState { mac: *mac, mtu: *mtu, link: *link })
    }

    /// The guest keeps the address that it knows.
    fn restore(&mut self, state: &NetState) -> Result<()> {
        let NetState { mac, mtu, link } = state;
        (self.mac, self.mtu, self.link) = (*mac, *mtu, *link);
        Ok(())
    }
}
