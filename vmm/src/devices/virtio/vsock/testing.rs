//! Fixtures for tests: a driver that speaks packets, and the directory of the host's sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::super::feature;
use super::super::testing::{Driver, Part};
use super::credit::BUFFER;
use super::packet;
use super::packet::{HOST_CID, PacketHeader, STREAM, op};
use super::{EVENT, RX, TX, Vsock};
use crate::config::devices::VsockConfig;
use crate::testing::ScratchDir;

/// CID of the guest, unless a test gives another.
pub(super) const CID: u32 = 3;
/// Bytes of the guest's buffer, unless a packet says otherwise.
pub(super) const ROOM: u32 = 64 << 10;
/// Longest wait of a host program.
const LIMIT: Duration = Duration::from_secs(20);

/// A guest with a vsock.
#[derive(Debug)]
pub(super) struct TestGuest {
    pub driver: Driver,
    /// The device, until it is replaced.
    pub vsock: Weak<Mutex<Vsock>>,
    pub cid: u32,
    pub dir: ScratchDir,
    /// Lengths of the descriptors of a receive buffer.
    split: Vec<usize>,
    /// Packets that the device has yet to take.
    outstanding: usize,
}

/// Makes a device at a socket of this name.
pub(super) fn device(dir: &Path, name: &str, cid: u32) -> Vsock {
    Vsock::open(&VsockConfig { cid, socket: dir.join(name).into() }).unwrap()
}

impl TestGuest {
    /// Makes a guest with receive buffers.
    pub fn new() -> Self {
        Self::with_buffers(&[4096], 32)
    }

    pub fn with_buffers(split: &[usize], count: usize) -> Self {
        let dir = ScratchDir::new();
        let vsock = Arc::new(Mutex::new(device(&dir, "vsock", CID)));
        let mut guest = Self {
            driver: Driver::around(Arc::clone(&vsock) as _, !feature::EVENT_IDX),
            vsock: Arc::downgrade(&vsock),
            cid: CID,
            dir,
            split: split.to_vec(),
            outstanding: 0,
        };
        guest.post(count);
        guest
    }

    /// Posts receive buffers.
    pub fn post(&mut self, count: usize) {
        let parts: Vec<_> = self.split.iter().map(|len| Part::In(*len)).collect();
        for _ in 0..count {
            self.driver.send(RX, &parts);
        }
    }

    /// Posts an event buffer.
    pub fn post_event(&mut self) {
        self.driver.send(EVENT, &[Part::In(4)]);
    }

    // ---- Packets ----

    /// Returns the header of a packet from port `guest` to port `host`.
    pub fn header(&self, op: u16, (host, guest): (u32, u32)) -> PacketHeader {
        PacketHeader {
            src_cid: self.cid.into(),
            dst_cid: HOST_CID,
            src_port: guest,
            dst_port: host,
            socket_type: STREAM,
            op,
            buf_alloc: ROOM,
            ..PacketHeader::default()
        }
    }

    pub fn send(&mut self, header: PacketHeader, payload: &[u8]) {
        self.send_split(header, payload, packet::LEN);
    }

    /// Sends a packet in three descriptors: up to `at`, one byte, the rest.
    pub fn send_split(&mut self, header: PacketHeader, payload: &[u8], at: usize) {
        let mut bytes = header.bytes().to_vec();
        bytes.extend(payload);
        let at = at.min(bytes.len() - 1);
        let parts = [&bytes[..at], &bytes[at..at + 1], &bytes[at + 1..]];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).map(Part::Out).collect();
        while self.outstanding >= 16 {
            self.driver.wait(TX);
            self.outstanding -= 1;
        }
        self.driver.send(TX, &parts);
        self.outstanding += 1;
        while self.driver.poll(TX).is_some() {
            self.outstanding -= 1;
        }
    }

    pub fn send_op(&mut self, op: u16, ports: (u32, u32)) {
        let header = self.header(op, ports);
        self.send(header, &[]);
    }

    pub fn send_data(&mut self, ports: (u32, u32), payload: &[u8]) {
        let header = PacketHeader { len: payload.len() as u32, ..self.header(op::RW, ports) };
        self.send(header, payload);
    }

    /// Waits until the device has taken all that was sent.
    pub fn drain(&mut self) {
        while self.outstanding > 0 {
            self.driver.wait(TX);
            self.outstanding -= 1;
        }
    }

    /// Waits for the next packet, and posts its buffer again.
    pub fn receive(&mut self) -> (PacketHeader, Vec<u8>) {
        let used = self.driver.until("a packet comes", |driver| driver.poll(RX));
        self.post(1);
        let header = PacketHeader::parse(used.written[..packet::LEN].try_into().unwrap());
        assert_eq!((header.src_cid, used.len), (HOST_CID, packet::LEN as u32 + header.len), "{header:?}");
        (header, used.written[packet::LEN..used.len as usize].to_vec())
    }

    /// Waits for a packet, which has this operation.
    pub fn expect(&mut self, op: u16) -> PacketHeader {
        let (header, _) = self.receive();
        assert_eq!((header.op, header.dst_cid), (op, self.cid.into()), "{header:?}");
        header
    }

    /// Returns the responses to everything that was sent.
    pub fn responses(&mut self) -> Vec<PacketHeader> {
        let mut responses = Vec::new();
        // A packet without a connection is refused before other packets of the same turn are sent. The
        // refusal of the second marker therefore follows all responses.
        for marker in [u32::MAX - 1, u32::MAX] {
            self.send_op(op::CREDIT_REQUEST, (marker, marker));
            loop {
                let (header, _) = self.receive();
                if (header.op, header.src_port) == (op::RST, marker) {
                    break;
                }
                responses.push(header);
            }
        }
        responses
    }

    /// Asserts that nothing that was sent gets a response.
    pub fn expect_silence(&mut self) {
        assert_eq!(self.responses(), []);
    }

    /// Waits for so many bytes of data.
    pub fn receive_data(&mut self, len: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while data.len() < len {
            let (header, payload) = self.receive();
            assert_eq!(header.op, op::RW, "{header:?}");
            data.extend(payload);
        }
        assert_eq!(data.len(), len);
        data
    }

    // ---- Connections ----

    pub fn socket(&self) -> PathBuf {
        self.dir.join("vsock")
    }

    /// Connects a host program that sends `line`.
    pub fn call(&self, line: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream
    }

    /// Makes a connection from the host to this port of the guest. Returns its ports, too.
    pub fn accept(&mut self, guest: u32) -> (UnixStream, (u32, u32)) {
        let mut stream = self.call(&format!("CONNECT {guest}\n"));
        let request = self.expect(op::REQUEST);
        assert_eq!(request.dst_port, guest);
        let ports = (request.src_port, guest);
        self.send_op(op::RESPONSE, ports);
        assert_eq!(read_line(&mut stream), format!("OK {}\n", ports.0));
        (stream, ports)
    }

    /// Fills the device's buffer for a host that does not read. Returns the bytes sent.
    pub fn fill(&mut self, ports: (u32, u32), data: &[u8]) -> usize {
        let (mut sent, mut before) = (0, None);
        loop {
            self.send_op(op::CREDIT_REQUEST, ports);
            let forwarded = self.responses().last().map(|update| update.fwd_cnt);
            if forwarded == before {
                return sent;
            }
            before = forwarded;
            let room = (forwarded.unwrap() + BUFFER) as usize;
            self.send_data(ports, &data[sent..room]);
            sent = room;
        }
    }

    /// Listens at the host's port.
    pub fn listen(&self, host: u32) -> UnixListener {
        UnixListener::bind(self.dir.join(format!("vsock_{host}"))).unwrap()
    }

    /// Makes a connection from the guest to a listener at the host's port.
    pub fn connect(&mut self, listener: &UnixListener, ports: (u32, u32)) -> UnixStream {
        self.send_op(op::REQUEST, ports);
        self.expect(op::RESPONSE);
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }
}

/// Reads a line and not a byte more.
pub(super) fn read_line(stream: &mut UnixStream) -> String {
    let mut line = String::new();
    BufReader::with_capacity(1, stream).read_line(&mut line).unwrap();
    line
}

/// Reads up to the end. A connection that was reset ends in an error instead.
pub(super) fn read_to_end(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Returns pseudo-random bytes of a seed.
pub(super) fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Raises the limit: a test has both ends of its connections, more than the usual 1024 descriptors.
#[allow(unsafe_code)]
pub(super) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid struct, and raising the limit changes nothing else.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(65_536);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}
