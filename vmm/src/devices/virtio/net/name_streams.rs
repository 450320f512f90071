//! Questions for names over TCP (RFC 7766): each connection ends in the device, whatever address it goes to.
//!
//! ```text
//!   guest <──frames──> TcpEnd <──length, message──> Names
//! ```

use std::time::{Duration, Instant};

use super::metadata::seed;
use super::relay::end::{BufferSizes, Endpoint, TcpChecksum, TcpEnd, is_whole_segment};
use super::relay::frame::{TcpFrame, frame_of};
use crate::config::network::Mac;

/// Most connections. One more takes the place of the one that was silent for longest.
const MOST_STREAMS: usize = 16;
/// Most questions of a connection whose answers are not sent yet.
const MOST_QUESTIONS: usize = 16;
/// Longest time without a question or an answer (RFC 7766, section 6.2.3: some seconds).
const IDLE: Duration = Duration::from_secs(20);
/// Bytes of a question at most, and of the answers that are on the way.
const SIZES: BufferSizes = BufferSizes { receive: 4 << 10, send: 32 << 10 };
/// Bytes of the length in front of a message.
const PREFIX: usize = 2;

/// A connection.
#[derive(Debug)]
struct Stream {
    /// Tells it from others of the same ends.
    number: u64,
    guest: Endpoint,
    far: Endpoint,
    macs: (Mac, Mac),
    end: TcpEnd,
    /// Answers that do not fit the buffer yet.
    unsent: Vec<u8>,
    /// Questions that wait for their answers.
    waiting: usize,
    until: Instant,
}

/// The connections of one interface.
#[derive(Debug)]
pub(super) struct NameStreams {
    mtu: u16,
    streams: Vec<Stream>,
    last: u64,
}

impl NameStreams {
    /// For an interface whose packets have at most `mtu` bytes.
    pub fn new(mtu: u16) -> Self {
        Self { mtu, streams: Vec::new(), last: 0 }
    }

    /// Forgets all connections.
    pub fn clear(&mut self) {
        self.streams.clear();
    }

    /// Takes a frame of the guest. Returns the questions in it, with the number of their connection, or
    /// `None` if it is of no connection.
    pub fn receive(
        &mut self,
        frame: &[u8],
        checksum: TcpChecksum,
        now: Instant,
    ) -> Option<Vec<(u64, Vec<u8>)>> {
        let Some(segment) =
            TcpFrame::parse(frame).filter(|segment| is_whole_segment(segment.packet, checksum))
        else {
            return Some(Vec::new());
        };
        let of_ends = |stream: &Stream| (stream.guest, stream.far) == (segment.source, segment.target);
        let mut at = self.streams.iter().position(of_ends);
        if segment.opens() && at.is_none_or(|at| self.streams[at].end.is_over()) {
            at.map(|at| self.streams.swap_remove(at));
            at = self.open(&segment, now);
        }
        let at = at?;
        let stream = &mut self.streams[at];
        // Verified above.
        stream.end.receive(segment.packet, TcpChecksum::Trusted, now);
        // Its acknowledgements make room, and an end is answered by one.
        stream.send(now);
        let number = stream.number;
        let questions = stream.questions(now);
        if stream.is_done() {
            self.streams.swap_remove(at);
        }
        Some(questions.into_iter().map(|question| (number, question)).collect())
    }

    /// Begins a connection. Returns its place.
    fn open(&mut self, segment: &TcpFrame<'_>, now: Instant) -> Option<usize> {
        if self.streams.len() >= MOST_STREAMS {
            let oldest = (0..self.streams.len()).min_by_key(|at| self.streams[*at].until)?;
            self.streams.swap_remove(oldest);
        }
        self.last += 1;
        self.streams.push(Stream {
            number: self.last,
            guest: segment.source,
            far: segment.target,
            macs: segment.macs,
            end: TcpEnd::listening(segment.target, SIZES, self.mtu, seed(), now)?,
            unsent: Vec::new(),
            waiting: 0,
            until: now + IDLE,
        });
        Some(self.streams.len() - 1)
    }

    /// Sends an answer on a connection, if that is still there.
    pub fn answer(&mut self, number: u64, message: &[u8], now: Instant) {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.number == number) else { return };
        stream.waiting = stream.waiting.saturating_sub(1);
        if stream.unsent.is_empty() {
            stream.until = now + IDLE;
        }
        stream.unsent.extend((message.len() as u16).to_be_bytes()); // messages are shorter than 64 KiB
        stream.unsent.extend_from_slice(message);
        stream.send(now);
    }

    /// Sends what is due, and ends connections. Returns questions that had to wait for answers.
    pub fn work(&mut self, now: Instant) -> Vec<(u64, Vec<u8>)> {
        let mut questions = Vec::new();
        for stream in &mut self.streams {
            if now >= stream.until {
                stream.end.socket_mut().abort();
            }
            stream.send(now);
            questions.extend(stream.questions(now).into_iter().map(|question| (stream.number, question)));
        }
        self.streams.retain(|stream| !stream.is_done());
        questions
    }

    /// The next frame to the guest.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        let next = |stream: &mut Stream| stream.end.next_packet();
        let (at, packet) =
            self.streams.iter_mut().enumerate().find_map(|(at, stream)| Some((at, next(stream)?)))?;
        let stream = &self.streams[at];
        let (guest, router) = stream.macs;
        let frame = frame_of(&packet, (router, guest), stream.guest.0);
        if stream.is_done() {
            self.streams.swap_remove(at);
        }
        Some(frame)
    }

    /// Whether a frame waits for the guest.
    pub fn has_waiting(&self) -> bool {
        self.streams.iter().any(|stream| stream.end.has_waiting())
    }

    /// When [`NameStreams::work`] has something to do without a frame.
    pub fn next_work(&mut self, now: Instant) -> Option<Instant> {
        let of_stream = |stream: &mut Stream| {
            // One that is over waits for the guest to take its last frames.
            let until = (!stream.end.is_over()).then_some(stream.until);
            until.into_iter().chain(stream.end.next_work(now)).min()
        };
        self.streams.iter_mut().filter_map(of_stream).min()
    }
}

impl Stream {
    /// Takes whole questions off the stream.
    fn questions(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut questions = Vec::new();
        // A guest that takes no answers gets no more of them.
        while self.waiting < MOST_QUESTIONS && self.unsent.is_empty() {
            let socket = self.end.socket_mut();
            let mut prefix = [0; PREFIX];
            if socket.peek_slice(&mut prefix) != Ok(PREFIX) {
                break;
            }
            let len = PREFIX + usize::from(u16::from_be_bytes(prefix));
            if len > SIZES.receive {
                // No question is so long.
                socket.abort();
                self.end.work(now);
                break;
            }
            if socket.recv_queue() < len {
                break;
            }
            let mut message = vec![0; len];
            let _ = socket.recv_slice(&mut message); // never fails: the bytes are there
            questions.push(message.split_off(PREFIX));
            self.waiting += 1;
            self.until = now + IDLE;
        }
        questions
    }

    /// Sends answers as far as there is room, and closes behind the last one.
    fn send(&mut self, now: Instant) {
        let socket = self.end.socket_mut();
        if socket.may_send() {
            let sent = socket.send_slice(&self.unsent).unwrap_or(0);
            self.unsent.drain(..sent);
        } else {
            self.unsent.clear();
        }
        let has_answered = self.unsent.is_empty() && self.waiting == 0;
        if has_answered && self.end.has_peer_ended() && !self.end.socket().can_recv() {
            self.end.socket_mut().close();
        }
        self.end.work(now);
    }

    /// Whether nothing is left of it to send.
    fn is_done(&self) -> bool {
        self.end.is_over() && !self.end.has_waiting()
    }
}

#[cfg(test)]
mod tests {
    use volt_policy::Datagram;

    use super::*;

    const GUEST: Endpoint = (std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 118, 111, 15)), 4000);
    const SERVER: Endpoint = (std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 118, 111, 3)), 53);
    const MACS: (Mac, Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

    /// A guest, and the streams of its device.
    struct Pair {
        guest: TcpEnd,
        streams: NameStreams,
        now: Instant,
        questions: Vec<(u64, Vec<u8>)>,
    }

    impl Pair {
        fn new() -> Self {
            let now = Instant::now();
            let sizes = BufferSizes { receive: 60_000, send: 60_000 };
            let guest = TcpEnd::connecting(GUEST, SERVER, sizes, 1500, 1, now).unwrap();
            let mut pair = Self { guest, streams: NameStreams::new(1500), now, questions: Vec::new() };
            pair.exchange();
            assert!(pair.guest.socket().may_send());
            pair
        }

        /// Carries frames until none is left.
        fn exchange(&mut self) {
            loop {
                self.guest.work(self.now);
                let mut is_idle = true;
                while let Some(packet) = self.guest.next_packet() {
                    let frame = frame_of(&packet, MACS, SERVER.0);
                    let questions = self.streams.receive(&frame, TcpChecksum::Verified, self.now);
                    self.questions.extend(questions.unwrap_or_default());
                    is_idle = false;
                }
                // As the device does: at its time alone.
                if self.streams.next_work(self.now).is_some_and(|next| next <= self.now) {
                    self.questions.extend(self.streams.work(self.now));
                }
                while let Some(frame) = self.streams.next_frame() {
                    let segment = TcpFrame::parse(&frame).unwrap();
                    assert_eq!(segment.macs, (MACS.1, MACS.0));
                    self.guest.receive(segment.packet, TcpChecksum::Verified, self.now);
                    is_idle = false;
                }
                if is_idle {
                    return;
                }
            }
        }

        fn ask(&mut self, message: &[u8]) {
            let prefix = (message.len() as u16).to_be_bytes();
            self.guest.socket_mut().send_slice(&[&prefix[..], message].concat()).unwrap();
            self.exchange();
        }

        fn received(&mut self) -> Vec<u8> {
            let mut bytes = vec![0; 60_000];
            let len = self.guest.socket_mut().recv_slice(&mut bytes).unwrap_or(0);
            bytes.truncate(len);
            bytes
        }
    }

    #[test]
    fn questions_are_answered_in_any_order() {
        let mut pair = Pair::new();
        pair.ask(b"one");
        pair.ask(b"two");
        let number = pair.questions[0].0;
        assert_eq!(pair.questions, [(number, b"one".to_vec()), (number, b"two".to_vec())]);
        pair.streams.answer(number, b"answer to two", pair.now);
        pair.streams.answer(number, &[7; 15_000], pair.now);
        pair.streams.answer(number + 1, b"to another connection", pair.now);
        pair.exchange();
        let received = pair.received();
        assert_eq!((&received[..15], received.len()), (&b"\0\x0danswer to two"[..], 15 + 2 + 15_000));
        assert!(Datagram::parse(&received).is_none());
    }

    #[test]
    fn connection_ends_behind_the_answer_to_the_last_question() {
        let mut pair = Pair::new();
        pair.ask(b"one");
        pair.guest.socket_mut().close();
        pair.exchange();
        pair.streams.answer(pair.questions[0].0, b"late", pair.now);
        pair.exchange();
        assert_eq!(pair.received(), b"\0\x04late");
        assert!(pair.guest.is_over());
        pair.exchange();
        assert_eq!(pair.streams.streams.len(), 0);
    }

    #[test]
    fn connection_ends_when_the_guest_ends_it_after_its_answers() {
        let mut pair = Pair::new();
        pair.ask(b"one");
        pair.streams.answer(pair.questions[0].0, b"early", pair.now);
        pair.exchange();
        pair.now += Duration::from_secs(2);
        pair.guest.socket_mut().close();
        pair.exchange();
        assert!(pair.guest.is_over() && !pair.guest.is_reset());
        assert_eq!(pair.streams.streams.len(), 0);
    }

    #[test]
    fn guest_that_takes_no_frames_causes_no_work() {
        let mut pair = Pair::new();
        pair.now += IDLE;
        pair.streams.work(pair.now);
        assert!(pair.streams.has_waiting(), "a reset waits for the guest");
        assert_eq!(pair.streams.next_work(pair.now), None);
        pair.exchange();
        assert!(pair.guest.is_reset() && pair.streams.streams.is_empty());
    }

    #[test]
    fn questions_and_time_of_a_connection_are_bounded() {
        let mut pair = Pair::new();
        (0..40).for_each(|_| pair.ask(b"again"));
        assert_eq!(pair.questions.len(), MOST_QUESTIONS);
        let number = pair.questions[0].0;
        (0..10).for_each(|_| pair.streams.answer(number, b"", pair.now));
        pair.exchange();
        assert_eq!(pair.questions.len(), MOST_QUESTIONS + 10, "the others have waited");
        assert_eq!(pair.streams.next_work(pair.now), Some(pair.now + IDLE));
        pair.now += IDLE;
        pair.exchange();
        assert!(pair.guest.is_reset() && pair.streams.streams.is_empty());
        let mut pair = Pair::new();
        pair.ask(&[0; 5000]);
        pair.exchange();
        assert!(pair.guest.is_reset() && pair.questions.is_empty(), "too long");
    }

    #[test]
    fn guest_that_takes_no_answers_asks_no_more_and_is_given_up() {
        let mut pair = Pair::new();
        for _ in 0..MOST_QUESTIONS {
            pair.ask(b"again");
        }
        let number = pair.questions[0].0;
        // More than the guest and both buffers have room for.
        (0..MOST_QUESTIONS).for_each(|_| pair.streams.answer(number, &[7; 16_000], pair.now));
        pair.exchange();
        let asked = pair.questions.len();
        (0..100).for_each(|_| pair.ask(b"again"));
        assert_eq!(pair.questions.len(), asked);
        assert!(pair.streams.streams[0].unsent.len() <= MOST_QUESTIONS * 16_002);
        pair.now += IDLE;
        pair.exchange();
        assert!(pair.streams.streams.is_empty());
    }

    #[test]
    fn many_connections_take_the_places_of_the_oldest() {
        let mut streams = NameStreams::new(1500);
        let now = Instant::now();
        for port in 1..1000 {
            let guest = (GUEST.0, port);
            let mut end = TcpEnd::connecting(guest, SERVER, SIZES, 1500, 1, now).unwrap();
            end.work(now);
            let frame = frame_of(&end.next_packet().unwrap(), MACS, SERVER.0);
            streams.receive(&frame, TcpChecksum::Verified, now);
            streams.receive(&frame[..frame.len() - 1], TcpChecksum::Verified, now);
            assert!(streams.streams.len() <= MOST_STREAMS);
        }
        streams.clear();
        assert!(streams.next_frame().is_none() && streams.next_work(now).is_none());
    }
}
