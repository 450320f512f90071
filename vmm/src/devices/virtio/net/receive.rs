//! The backend's frames to the guest.
//!
//! ```text
//!                                 fits ──> chains are given back
//!  backend ──readv──> window ───<
//!                + spill          too long ──queue is empty──> held ──more chains, or time──> window, or dropped
//! ```
//!
//! A frame is read into a window of chains that were taken off the queue; what was not used of it goes back to the queue at
//! the end of the turn. Behind the window lies memory of the device's own, for the end of a frame that is longer than the
//! last ones were.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::backend;
use super::backend::Backend;
use super::backoff::Backoff;
use super::header;
use super::header::Header;
use super::pieces::Pieces;
use super::{FRAMES, Pause, SHORTEST, feature};
use crate::config::devices::RateLimit;
use crate::devices::virtio::chain::{Buffers, Chain};
use crate::devices::virtio::limiter::RateLimiter;
use crate::devices::virtio::{Broken, Io};
use crate::memory::own_writes::GuestMemory;

/// The queue.
const QUEUE: usize = 0;
/// The longest frame that there can be, with its header (virtio 1.2, section 5.1.6.3.1).
const LONGEST: usize = 65_562;
/// Room for it, and to see that one was longer.
const SPILL: usize = LONGEST + 64;
/// Beyond this a window takes so many chains that it is asked first whether there is another frame for them.
const LONG: usize = 8192;
/// Chains that a guest may begin to work on while the device goes on.
const ENOUGH: u16 = 64;
/// For how long a frame waits for the guest to make room.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// The way in.
#[derive(Debug)]
pub(super) struct Receiver {
    /// There may be work though the backend says nothing: it has just begun, or chains were missing.
    pub due: bool,
    /// The guest has too few buffers: there is no use in hearing of frames.
    pub starved: bool,
    /// No more is to be received for now.
    pub limited: bool,
    pub limiter: RateLimiter,
    /// Frames that the guest had no room for, or that could not be read.
    pub dropped: u64,
    /// The last error of a read that did not end the connection, until someone takes note of it.
    pub error: Option<io::Error>,
    backoff: Backoff,
    /// Empty before the first frame: to touch it costs a restore as much as all else of an interface.
    spill: Vec<u8>,
    held: Option<Held>,
    /// How long the next frame is, by those before it.
    expected: usize,
}

/// A frame that waits for chains.
#[derive(Debug)]
struct Held {
    header: Header,
    bytes: Vec<u8>,
    until: Instant,
}

/// Chains that were taken off the queue, in order.
#[derive(Default)]
struct Window<'m> {
    chains: VecDeque<Chain<'m>>,
    /// Where the header goes: the first bytes of the first chain.
    header: Buffers<'m>,
    /// Bytes of all chains behind the header.
    room: usize,
}

/// What was read: a header, and how many bytes with it, of which up to `room` lie in the window.
struct Read {
    header: [u8; header::LEN],
    len: usize,
    room: usize,
}

/// A frame for the guest: its first `in_place` bytes lie in the window, the others in `tail`.
struct Frame<'a> {
    header: Header,
    in_place: usize,
    tail: &'a [u8],
}

impl Receiver {
    pub fn new(limit: &RateLimit) -> Self {
        let limiter = RateLimiter::new(limit);
        Self {
            due: true,
            starved: false,
            limited: false,
            limiter,
            dropped: 0,
            error: None,
            backoff: Backoff::default(),
            spill: Vec::new(),
            held: None,
            expected: 0,
        }
    }

    /// Forgets frames of a driver that is no more.
    pub fn reset(&mut self) {
        (self.held, self.due, self.starved, self.expected) = (None, true, false, 0);
    }

    /// The guest runs, or runs again: while it stood still it could make no room.
    pub fn begin(&mut self) {
        self.due = true;
        if let Some(held) = &mut self.held {
            held.until = Instant::now() + PATIENCE;
        }
    }

    /// One turn.
    pub fn turn(&mut self, backend: &mut dyn Backend, io: &mut Io<'_>) -> Result<Pause, Broken> {
        let memory = io.ram.guest();
        (self.due, self.starved, self.limited) = (false, false, false);
        io.queues[QUEUE].hush(memory)?;
        let mut window = Window::default();
        let mut frames = 0;
        let pause = loop {
            if frames == FRAMES {
                break Pause::Again;
            }
            let starved = match self.held.take() {
                Some(held) => !self.deliver_held(held, &mut window, io)?,
                None => {
                    if frames > 0 && self.expected > LONG && !backend.may_have_frame() {
                        break Pause::Ready;
                    }
                    window.widen(self.expected, io)?;
                    if window.chains.is_empty() {
                        true
                    } else {
                        // How long a frame is it is known by reading it: a long one leaves a debt.
                        if let Err(at) = self.limiter.check(Instant::now(), 1) {
                            self.limited = true;
                            break Pause::At(at);
                        }
                        match self.read(backend, &window) {
                            Ok(read) => !self.deliver_read(&read, &mut window, io)?,
                            Err(error) if error.kind() == ErrorKind::Interrupted => false,
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                                self.backoff.succeeded();
                                break Pause::Ready;
                            }
                            Err(error) if backend::is_gone(&error) => break Pause::Gone(error),
                            Err(error) => match self.note_error(error) {
                                None => false,
                                Some(at) => break Pause::At(at),
                            },
                        }
                    }
                }
            };
            frames += 1;
            if starved {
                if io.queues[QUEUE].listen(memory)? {
                    io.queues[QUEUE].hush(memory)?;
                    continue;
                }
                self.starved = true;
                break self.held.as_ref().map_or(Pause::Ready, |held| Pause::At(held.until));
            }
        };
        for _ in &window.chains {
            io.queues[QUEUE].unpop();
        }
        self.due = self.starved || self.limited || matches!(pause, Pause::Again);
        Ok(pause)
    }

    /// Counts a frame that could not be read. Returns when to try again, if not at once.
    fn note_error(&mut self, error: io::Error) -> Option<Instant> {
        self.dropped += 1;
        self.error = Some(error);
        let at = self.backoff.failed(Instant::now());
        self.limited |= at.is_some();
        at
    }

    /// Reads a frame into the window and what lies behind it, and its header elsewhere.
    fn read(&mut self, backend: &mut dyn Backend, window: &Window<'_>) -> io::Result<Read> {
        let mut header = [0; header::LEN];
        let mut into = Pieces::with_capacity(window.chains.len() + 2);
        into.own(&mut header);
        let room = window.add_to(&mut into);
        self.spill.resize(SPILL, 0);
        into.own(&mut self.spill);
        // An error may come after some of the window was written.
        let received = backend.receive(into).inspect_err(|_| window.written(room))?;
        self.backoff.succeeded();
        window.written(received.saturating_sub(header::LEN));
        match received {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            len => {
                self.limiter.spend(len.saturating_sub(header::LEN) as u64);
                Ok(Read { header, len, room })
            }
        }
    }

    /// What is to be done with a frame that was read. False if the guest has to make room first.
    fn deliver_read<'m>(
        &mut self,
        read: &Read,
        window: &mut Window<'m>,
        io: &mut Io<'m>,
    ) -> Result<bool, Broken> {
        let body = read.len.saturating_sub(header::LEN);
        // A window that is too small costs a copy, one that is too large the chains that are taken for nothing. Long frames
        // come with short ones between them.
        self.expected = body.max(self.expected / 2);
        let features = io.features & feature::OFFLOAD;
        let header = Header::from_bytes(read.header).for_guest(features, body);
        let Some(header) = header.filter(|_| body >= SHORTEST && read.len <= LONGEST) else {
            self.dropped += 1;
            return Ok(true);
        };
        let in_place = read.room.min(body);
        let tail = &self.spill[..body - in_place];
        if window.widen(body, io)? {
            window.deliver(&Frame { header, in_place, tail }, io)?;
            return Ok(true);
        }
        if window.is_all_there_can_be(io) {
            self.dropped += 1;
            return Ok(true);
        }
        let mut bytes = window.copy(in_place);
        bytes.extend(tail);
        self.held = Some(Held { header, bytes, until: Instant::now() + PATIENCE });
        Ok(false)
    }

    /// The same with a frame that was held.
    fn deliver_held<'m>(
        &mut self,
        held: Held,
        window: &mut Window<'m>,
        io: &mut Io<'m>,
    ) -> Result<bool, Broken> {
        if window.widen(held.bytes.len(), io)? {
            window.deliver(&Frame { header: held.header, in_place: 0, tail: &held.bytes }, io)?;
        } else if window.is_all_there_can_be(io) || Instant::now() >= held.until {
            self.dropped += 1;
        } else {
            self.held = Some(held);
            return Ok(false);
        }
        Ok(true)
    }
}

impl<'m> Window<'m> {
    /// Takes chains off the queue until there is room for `bytes`, or nothing left. Says whether there is room.
    fn widen(&mut self, bytes: usize, io: &mut Io<'m>) -> Result<bool, Broken> {
        let ram: &'m GuestMemory = io.ram.guest();
        let mergeable = io.features & feature::MRG_RXBUF != 0;
        while self.chains.is_empty() || self.room < bytes && mergeable {
            let Some(chain) = io.queues[QUEUE].pop(ram)? else { break };
            if chain.writable.is_empty() {
                return Err(Broken("a receive buffer that cannot be written"));
            }
            self.room += chain.writable.len();
            self.chains.push_back(chain);
            if self.chains.len() == 1 {
                self.set_header_apart()?;
            }
        }
        Ok(!self.chains.is_empty() && self.room >= bytes)
    }

    /// The first chain is where the next frame begins.
    fn set_header_apart(&mut self) -> Result<(), Broken> {
        if let Some(first) = self.chains.front_mut() {
            self.header = first.writable.take(header::LEN);
            self.room -= self.header.len();
            if self.header.len() < header::LEN {
                return Err(Broken("a receive buffer shorter than a header"));
            }
        }
        Ok(())
    }

    /// Whether no driver could add to the window, however long it is waited.
    fn is_all_there_can_be(&self, io: &Io<'_>) -> bool {
        io.features & feature::MRG_RXBUF == 0 || self.chains.len() >= usize::from(io.queues[QUEUE].size())
    }

    /// Adds the chains to what is read into, as many whole ones as one call takes, with one piece more behind them. Says how much
    /// room they have.
    fn add_to(&self, into: &mut Pieces<'m>) -> usize {
        let fitting = self.chains.iter().take_while(|chain| into.guest(&chain.writable, 1));
        fitting.map(|chain| chain.writable.len()).sum()
    }

    /// The backend wrote so many bytes to it.
    fn written(&self, mut count: usize) {
        for chain in &self.chains {
            let here = count.min(chain.writable.len());
            chain.writable.written(here);
            count -= here;
        }
    }

    /// What a frame that was read left in the window.
    fn copy(&self, bytes: usize) -> Vec<u8> {
        let mut pieces = Pieces::default();
        self.add_to(&mut pieces);
        let mut copy = pieces.copy_out(0);
        copy.truncate(bytes);
        copy
    }

    /// Gives the guest a frame that there is room for. It hears of it at the end of the turn, unless there is enough to begin
    /// with.
    fn deliver(&mut self, frame: &Frame<'_>, io: &mut Io<'m>) -> Result<(), Broken> {
        let Frame { mut header, mut in_place, mut tail } = *frame;
        let mut given = Vec::new();
        let mut before = header::LEN;
        while given.is_empty() || in_place > 0 || !tail.is_empty() {
            let Some(mut chain) = self.chains.pop_front() else { break };
            let room = chain.writable.len();
            self.room -= room;
            let mut written = in_place.min(room);
            in_place -= written;
            // The tail begins with a chain: what was read in place filled all that were read into.
            if written == 0 {
                written = chain.writable.write(tail);
                tail = &tail[written..];
            }
            given.push((chain.head, std::mem::take(&mut before) + written));
        }
        header.num_buffers = given.len() as u16; // a queue has at most 256 chains
        self.header.write(&header.to_bytes());
        let (memory, queue) = (io.ram.guest(), &mut io.queues[QUEUE]);
        queue.put_together(memory, &given)?;
        if queue.unannounced() >= ENOUGH && queue.wants_interrupt(memory)? {
            io.interrupt.queue();
        }
        self.set_header_apart()
    }
}
