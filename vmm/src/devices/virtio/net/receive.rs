//! Frames from the backend and the metadata service to the guest.
//!
//! ```text
//!                                 fits ──> chains are given to the guest
//!  backend ──readv──> window ───<
//!                + spill          too long ──queue is empty──> waiting ──chains or time──> window, or dropped
//! ```
//!
//! A frame is read into a window of chains that were taken off the queue; unused chains return to the queue
//! at the end of the turn. The device's own spill memory follows the window, for the end of a frame that is
//! longer than the previous ones.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::backend;
use super::backend::Backend;
use super::backoff::Backoff;
use super::guard::{Guard, Passage};
use super::header;
use super::header::Header;
use super::pieces::Pieces;
use super::services::Services;
use super::{MAX_FRAMES_PER_TURN, MIN_FRAME, TurnEnd, feature};
use crate::config::devices::RateLimit;
use crate::devices::virtio::chain::{Buffers, Chain};
use crate::devices::virtio::limiter::RateLimiter;
use crate::devices::virtio::{DeviceFailed, DeviceIo};
use crate::memory::own_writes::GuestMemory;

/// Number of the queue.
const QUEUE: usize = 0;
/// Bytes of the longest possible frame, with its header (virtio 1.2, section 5.1.6.3.1).
const MAX_FRAME: usize = 65_562;
/// Room for the longest frame, and to detect a longer one.
const SPILL: usize = MAX_FRAME + 64;
/// Expected length beyond which a window takes many chains, so the backend is first asked for another frame.
const LONG_FRAME: usize = 8192;
/// Chains after which the guest is interrupted while the device continues.
const INTERRUPT_AFTER: u16 = 64;
/// Time that a frame waits for buffers of the guest.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// The receiving direction.
#[derive(Debug)]
pub(super) struct Receiver {
    /// There may be work without an event of the backend: the device has just begun, or chains were missing.
    pub due: bool,
    /// The guest has too few buffers, so frames are of no use.
    pub starved: bool,
    /// The rate limit or a failing backend forbids receiving for now.
    pub limited: bool,
    pub limiter: RateLimiter,
    /// Frames that did not fit the guest's buffers or could not be read.
    pub dropped: u64,
    /// The last read error that did not end the connection, until it is logged.
    pub error: Option<io::Error>,
    backoff: Backoff,
    /// Empty before the first frame: touching it costs as much of a restore as all else of an interface.
    spill: Vec<u8>,
    waiting: Option<WaitingFrame>,
    /// Expected length of the next frame, from the previous ones.
    expected: usize,
}

/// A frame that waits for chains.
#[derive(Debug)]
struct WaitingFrame {
    header: Header,
    bytes: Vec<u8>,
    /// Time at which it was read.
    began: Instant,
    deadline: Instant,
}

/// Chains that were taken off the queue, in order.
#[derive(Default)]
struct ChainWindow<'m> {
    chains: VecDeque<Chain<'m>>,
    /// Place of the header: the first bytes of the first chain.
    header: Buffers<'m>,
    /// Bytes of all chains after the header.
    room: usize,
}

/// A frame as read: a header and the length with it. Up to `room` bytes lie in the window.
struct ReadFrame {
    header: [u8; header::LEN],
    len: usize,
    room: usize,
}

/// The fate of a frame that the backend has.
enum Incoming {
    Passes(ReadFrame),
    Dropped,
    /// The device has it.
    Taken,
}

/// A frame for the guest: its first `in_place` bytes lie in the window, the rest in `tail`.
struct GuestFrame<'a> {
    header: Header,
    in_place: usize,
    tail: &'a [u8],
}

impl Incoming {
    /// The fate of a frame that does not pass.
    fn stopped(passage: Passage) -> Self {
        if passage == Passage::Drops { Self::Dropped } else { Self::Taken }
    }
}

impl WaitingFrame {
    /// A frame that leaves no work to the guest.
    fn new(bytes: Vec<u8>) -> Self {
        let began = Instant::now();
        Self { header: Header::default(), bytes, began, deadline: began + PATIENCE }
    }
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
            waiting: None,
            expected: 0,
        }
    }

    /// Drops the frames of a previous driver.
    pub fn reset(&mut self) {
        (self.waiting, self.due, self.starved, self.expected) = (None, true, false, 0);
    }

    /// Starts again after a pause. The guest could not post buffers while it was paused.
    pub fn begin(&mut self) {
        self.due = true;
        if let Some(waiting) = &mut self.waiting {
            waiting.deadline = Instant::now() + PATIENCE;
        }
    }

    /// Receives frames for one turn. Not by [`DeviceIo::each_chain`]: a frame may take several chains, and
    /// the backend is asked for a frame only once there are chains.
    pub fn turn(
        &mut self,
        backend: &mut dyn Backend,
        services: &mut Services,
        io: &mut DeviceIo<'_>,
    ) -> Result<TurnEnd, DeviceFailed> {
        let memory = io.ram.guest();
        (self.due, self.starved, self.limited) = (false, false, false);
        io.queues[QUEUE].disable_notifications(memory)?;
        let mut window = ChainWindow::default();
        let mut frames = 0;
        let turn_end = loop {
            if frames == MAX_FRAMES_PER_TURN {
                break TurnEnd::Again;
            }
            let of_device = || services.next_frame().map(WaitingFrame::new);
            let starved = match self.waiting.take().or_else(of_device) {
                Some(waiting) => !self.deliver_waiting(waiting, &mut window, io)?,
                None => {
                    if frames > 0 && self.expected > LONG_FRAME && !backend.may_have_frame() {
                        break TurnEnd::Ready;
                    }
                    window.widen(self.expected, io)?;
                    if window.chains.is_empty() {
                        true
                    } else {
                        // The length of a frame is known only after the read, so a long frame leaves a debt.
                        if let Err(at) = self.limiter.check(Instant::now(), 1) {
                            self.limited = true;
                            break TurnEnd::At(at);
                        }
                        let began = Instant::now();
                        match self.read_judged(backend, &window, services.guard.as_deref_mut()) {
                            Ok(Incoming::Passes(read)) => {
                                !self.deliver_read(&read, began, &mut window, io)?
                            }
                            Ok(Incoming::Dropped) => {
                                self.drop_frame(began, io);
                                false
                            }
                            Ok(Incoming::Taken) => false,
                            Err(error) if error.kind() == ErrorKind::Interrupted => false,
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                                self.backoff.succeeded();
                                break TurnEnd::Ready;
                            }
                            Err(error) if backend::is_gone(&error) => break TurnEnd::Gone(error),
                            Err(error) => match self.note_error(error, began, io) {
                                None => false,
                                Some(at) => break TurnEnd::At(at),
                            },
                        }
                    }
                }
            };
            frames += 1;
            if starved {
                if let Some(chain) = io.queues[QUEUE].next_chain(memory)? {
                    window.push(chain)?;
                    continue;
                }
                self.starved = true;
                break self.waiting.as_ref().map_or(TurnEnd::Ready, |waiting| TurnEnd::At(waiting.deadline));
            }
        };
        for _ in &window.chains {
            io.queues[QUEUE].unpop();
        }
        io.counters.limited(QUEUE, self.limiter.waits());
        if frames > 0 {
            io.counters.turn(QUEUE);
        }
        io.counters.waits(QUEUE, self.starved);
        self.due = self.starved || self.limited || matches!(turn_end, TurnEnd::Again);
        Ok(turn_end)
    }

    /// Counts a frame that the guest does not get.
    fn drop_frame(&mut self, began: Instant, io: &DeviceIo<'_>) {
        self.dropped += 1;
        io.counters.failed(QUEUE, began.elapsed());
    }

    /// Counts a frame that could not be read. Returns the time of the next attempt, or `None` for at once.
    fn note_error(&mut self, error: io::Error, began: Instant, io: &DeviceIo<'_>) -> Option<Instant> {
        self.drop_frame(began, io);
        self.error = Some(error);
        let at = self.backoff.failed(Instant::now());
        self.limited |= at.is_some();
        at
    }

    /// Reads a frame, whose fate a guard decides if there is one.
    fn read_judged(
        &mut self,
        backend: &mut dyn Backend,
        window: &ChainWindow<'_>,
        guard: Option<&mut Guard>,
    ) -> io::Result<Incoming> {
        let Some(guard) = guard else { return self.read(backend, window, false).map(Incoming::Passes) };
        // Judged where it lies, it is copied once: to the guest.
        if let Some(frame) = backend.peek()? {
            let (passage, len) = (guard.incoming(frame, false), frame.len());
            if passage == Passage::Passes {
                return self.read(backend, window, false).map(Incoming::Passes);
            }
            backend.skip();
            self.backoff.succeeded();
            self.limiter.spend(len as u64);
            return Ok(Incoming::stopped(passage));
        }
        let read = self.read(backend, window, true)?;
        let body = read.len.saturating_sub(header::LEN);
        // A longer frame than there is room for is cut, and dropped later.
        let frame = &self.spill[..body.min(self.spill.len())];
        match guard.incoming(frame, Header::from_bytes(read.header).is_checked()) {
            Passage::Passes => Ok(Incoming::Passes(read)),
            passage => Ok(Incoming::stopped(passage)),
        }
    }

    /// Reads a frame into the window and the spill memory, and its header apart. A frame that may not pass is
    /// read into the spill memory alone.
    fn read(
        &mut self,
        backend: &mut dyn Backend,
        window: &ChainWindow<'_>,
        is_guarded: bool,
    ) -> io::Result<ReadFrame> {
        let mut header = [0; header::LEN];
        let mut into = Pieces::with_capacity(window.chains.len() + 2);
        into.push_own(&mut header);
        let room = if is_guarded { 0 } else { window.add_to(&mut into) };
        self.spill.resize(SPILL, 0);
        into.push_own(&mut self.spill);
        // An error may follow after a part of the window was written.
        let received = backend.receive(into).inspect_err(|_| window.written(room))?;
        self.backoff.succeeded();
        window.written(received.saturating_sub(header::LEN).min(room));
        match received {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            len => {
                self.limiter.spend(len.saturating_sub(header::LEN) as u64);
                Ok(ReadFrame { header, len, room })
            }
        }
    }

    /// Delivers, keeps or drops a frame that was read. Returns false if the guest has to post buffers first.
    fn deliver_read<'m>(
        &mut self,
        read: &ReadFrame,
        began: Instant,
        window: &mut ChainWindow<'m>,
        io: &mut DeviceIo<'m>,
    ) -> Result<bool, DeviceFailed> {
        let body = read.len.saturating_sub(header::LEN);
        // A window that is too small costs a copy; one that is too large costs chains taken for nothing.
        // Short frames come between long ones.
        self.expected = body.max(self.expected / 2);
        let features = io.features & feature::OFFLOAD;
        let header = Header::from_bytes(read.header).for_guest(features, body);
        let Some(header) = header.filter(|_| body >= MIN_FRAME && read.len <= MAX_FRAME) else {
            self.drop_frame(began, io);
            return Ok(true);
        };
        let in_place = read.room.min(body);
        let tail = &self.spill[..body - in_place];
        if window.widen(body, io)? {
            window.deliver(&GuestFrame { header, in_place, tail }, io)?;
            io.counters.done(QUEUE, read.len, began.elapsed());
            return Ok(true);
        }
        if window.is_at_maximum(io) {
            self.drop_frame(began, io);
            return Ok(true);
        }
        let mut bytes = window.copy(in_place);
        bytes.extend(tail);
        self.waiting = Some(WaitingFrame { header, began, ..WaitingFrame::new(bytes) });
        Ok(false)
    }

    /// Delivers, keeps or drops the waiting frame. Returns false if the guest has to post buffers first.
    fn deliver_waiting<'m>(
        &mut self,
        waiting: WaitingFrame,
        window: &mut ChainWindow<'m>,
        io: &mut DeviceIo<'m>,
    ) -> Result<bool, DeviceFailed> {
        if window.widen(waiting.bytes.len(), io)? {
            window.deliver(&GuestFrame { header: waiting.header, in_place: 0, tail: &waiting.bytes }, io)?;
            io.counters.done(QUEUE, waiting.bytes.len() + header::LEN, waiting.began.elapsed());
        } else if window.is_at_maximum(io) || Instant::now() >= waiting.deadline {
            self.drop_frame(waiting.began, io);
        } else {
            self.waiting = Some(waiting);
            return Ok(false);
        }
        Ok(true)
    }
}

impl<'m> ChainWindow<'m> {
    /// Takes chains off the queue until there is room for `bytes` or the queue is empty. Returns whether
    /// there is room.
    fn widen(&mut self, bytes: usize, io: &mut DeviceIo<'m>) -> Result<bool, DeviceFailed> {
        let ram: &'m GuestMemory = io.ram.guest();
        let mergeable = io.features & feature::MRG_RXBUF != 0;
        while self.chains.is_empty() || self.room < bytes && mergeable {
            let Some(chain) = io.queues[QUEUE].pop(ram)? else { break };
            self.push(chain)?;
        }
        Ok(!self.chains.is_empty() && self.room >= bytes)
    }

    /// Widens the window by a chain.
    fn push(&mut self, chain: Chain<'m>) -> Result<(), DeviceFailed> {
        if chain.writable.is_empty() {
            return Err(DeviceFailed("a receive buffer is not writable"));
        }
        self.room += chain.writable.len();
        self.chains.push_back(chain);
        if self.chains.len() == 1 {
            self.split_off_header()?;
        }
        Ok(())
    }

    /// Sets the room for the header apart from the first chain, where the next frame begins.
    fn split_off_header(&mut self) -> Result<(), DeviceFailed> {
        if let Some(first) = self.chains.front_mut() {
            self.header = first.writable.take(header::LEN);
            self.room -= self.header.len();
            if self.header.len() < header::LEN {
                return Err(DeviceFailed("a receive buffer is shorter than a header"));
            }
        }
        Ok(())
    }

    /// Returns whether the driver cannot extend the window, however long the frame waits.
    fn is_at_maximum(&self, io: &DeviceIo<'_>) -> bool {
        io.features & feature::MRG_RXBUF == 0 || self.chains.len() >= usize::from(io.queues[QUEUE].size())
    }

    /// Adds whole chains to `into`, as many as one call takes with one more piece behind them. Returns their
    /// room.
    fn add_to(&self, into: &mut Pieces<'m>) -> usize {
        let fitting = self.chains.iter().take_while(|chain| into.push_guest(&chain.writable, 1));
        fitting.map(|chain| chain.writable.len()).sum()
    }

    /// Marks the first `count` bytes of the window as written.
    fn written(&self, mut count: usize) {
        for chain in &self.chains {
            let len = count.min(chain.writable.len());
            chain.writable.written(len);
            count -= len;
        }
    }

    /// Copies the first `bytes` bytes of a frame out of the window.
    fn copy(&self, bytes: usize) -> Vec<u8> {
        let mut pieces = Pieces::default();
        self.add_to(&mut pieces);
        let mut copy = pieces.copy_out(0);
        copy.truncate(bytes);
        copy
    }

    /// Gives the guest a frame for which the window has room. The guest is interrupted at the end of the
    /// turn, or earlier after [`INTERRUPT_AFTER`] chains.
    fn deliver(&mut self, frame: &GuestFrame<'_>, io: &mut DeviceIo<'m>) -> Result<(), DeviceFailed> {
        let GuestFrame { mut header, mut in_place, mut tail } = *frame;
        let mut given = Vec::new();
        let mut before = header::LEN;
        while given.is_empty() || in_place > 0 || !tail.is_empty() {
            let Some(mut chain) = self.chains.pop_front() else { break };
            let room = chain.writable.len();
            self.room -= room;
            let mut written = in_place.min(room);
            in_place -= written;
            // The tail begins at a chain, because the bytes read in place fill all their chains.
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
        if queue.unannounced() >= INTERRUPT_AFTER && queue.wants_interrupt(memory)? {
            io.interrupt.queue();
        }
        self.split_off_header()
    }
}
