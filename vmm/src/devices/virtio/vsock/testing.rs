//! A guest's end for tests: a driver that speaks packets, and the directory where its host's sockets are.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Deref;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::testing::{Driver, Part};
use super::credit::BUFFER;
use super::packet;
use super::packet::{HOST_CID, Header, STREAM, op};
use super::{EVENT, RX, TX, Vsock};
use crate::config::devices::VsockConfig;

/// The guest's address, unless a test gives it another.
pub(super) const CID: u32 = 3;
/// The guest's buffer, unless a packet says otherwise.
pub(super) const ROOM: u32 = 64 << 10;
/// Host programs wait no longer than this.
const LIMIT: Duration = Duration::from_secs(20);

/// A directory that goes when the test is over.
#[derive(Debug)]
pub(super) struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        let path =
            std::env::temp_dir().join(format!("volt-vsock-{}", crate::store::dir::random_hex().unwrap()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Deref for TempDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The guest.
#[derive(Debug)]
pub(super) struct Guest {
    pub driver: Driver,
    pub cid: u32,
    pub dir: TempDir,
    /// How a buffer to receive in is split.
    split: Vec<usize>,
    /// Packets that the device has yet to take.
    outstanding: usize,
}

/// A device at a socket of this name.
pub(super) fn device(dir: &Path, name: &str, cid: u32) -> Vsock {
    Vsock::open(&VsockConfig { cid, socket: dir.join(name).into() }).unwrap()
}

impl Guest {
    /// With buffers to receive in.
    pub fn new() -> Self {
        Self::with_buffers(&[4096], 32)
    }

    pub fn with_buffers(split: &[usize], count: usize) -> Self {
        let dir = TempDir::new();
        let mut guest = Self {
            driver: Driver::new(device(&dir, "vsock", CID)),
            cid: CID,
            dir,
            split: split.to_vec(),
            outstanding: 0,
        };
        guest.post(count);
        guest
    }

    /// Gives buffers to receive in.
    pub fn post(&mut self, count: usize) {
        let parts: Vec<_> = self.split.iter().map(|len| Part::In(*len)).collect();
        for _ in 0..count {
            self.driver.send(RX, &parts);
        }
    }

    /// Gives a buffer for an event.
    pub fn post_event(&mut self) {
        self.driver.send(EVENT, &[Part::In(4)]);
    }

    // ---- Packets ----

    /// A packet's header, as a connection's from `guest` to `host`.
    pub fn header(&self, op: u16, (host, guest): (u32, u32)) -> Header {
        Header {
            src_cid: self.cid.into(),
            dst_cid: HOST_CID,
            src_port: guest,
            dst_port: host,
            socket_type: STREAM,
            op,
            buf_alloc: ROOM,
            ..Header::default()
        }
    }

    pub fn send(&mut self, header: Header, payload: &[u8]) {
        self.send_split(header, payload, packet::LEN);
    }

    /// Sends a packet in three descriptors: up to `at`, one byte, the rest.
    pub fn send_split(&mut self, header: Header, payload: &[u8], at: usize) {
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

    pub fn say(&mut self, op: u16, ports: (u32, u32)) {
        let header = self.header(op, ports);
        self.send(header, &[]);
    }

    pub fn send_data(&mut self, ports: (u32, u32), payload: &[u8]) {
        let header = Header { len: payload.len() as u32, ..self.header(op::RW, ports) };
        self.send(header, payload);
    }

    /// Waits until the device has taken all that was sent.
    pub fn drain(&mut self) {
        while self.outstanding > 0 {
            self.driver.wait(TX);
            self.outstanding -= 1;
        }
    }

    /// Waits for the next packet. Its buffer is given back.
    pub fn receive(&mut self) -> (Header, Vec<u8>) {
        let used = self.driver.until("a packet comes", |driver| driver.poll(RX));
        self.post(1);
        let header = Header::parse(used.written[..packet::LEN].try_into().unwrap());
        assert_eq!((header.src_cid, used.len), (HOST_CID, packet::LEN as u32 + header.len), "{header:?}");
        (header, used.written[packet::LEN..used.len as usize].to_vec())
    }

    /// Waits for a packet of this kind and no other.
    pub fn expect(&mut self, op: u16) -> Header {
        let (header, _) = self.receive();
        assert_eq!((header.op, header.dst_cid), (op, self.cid.into()), "{header:?}");
        header
    }

    /// What comes in answer to all that was sent.
    pub fn answers(&mut self) -> Vec<Header> {
        let mut answers = Vec::new();
        // A packet to nobody is answered before what else there is to say in the same turn: with the second that is said.
        for marker in [u32::MAX - 1, u32::MAX] {
            self.say(op::CREDIT_REQUEST, (marker, marker));
            loop {
                let (header, _) = self.receive();
                if (header.op, header.src_port) == (op::RST, marker) {
                    break;
                }
                answers.push(header);
            }
        }
        answers
    }

    /// Nothing comes in answer to all that was sent.
    pub fn expect_silence(&mut self) {
        assert_eq!(self.answers(), []);
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

    /// A program of the host that connects and says `line`.
    pub fn call(&self, line: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream
    }

    /// A connection from the host to this port of the guest, and its ports.
    pub fn accept(&mut self, guest: u32) -> (UnixStream, (u32, u32)) {
        let mut stream = self.call(&format!("CONNECT {guest}\n"));
        let request = self.expect(op::REQUEST);
        assert_eq!(request.dst_port, guest);
        let ports = (request.src_port, guest);
        self.say(op::RESPONSE, ports);
        assert_eq!(read_line(&mut stream), format!("OK {}\n", ports.0));
        (stream, ports)
    }

    /// Fills the device's buffer for a host that does not read, and says with how much.
    pub fn fill(&mut self, ports: (u32, u32), data: &[u8]) -> usize {
        let (mut sent, mut before) = (0, None);
        loop {
            self.say(op::CREDIT_REQUEST, ports);
            let told = self.answers().last().map(|update| update.fwd_cnt);
            if told == before {
                return sent;
            }
            before = told;
            let room = (told.unwrap() + BUFFER) as usize;
            self.send_data(ports, &data[sent..room]);
            sent = room;
        }
    }

    /// Listens at the host's port.
    pub fn listen(&self, host: u32) -> UnixListener {
        UnixListener::bind(self.dir.join(format!("vsock_{host}"))).unwrap()
    }

    /// A connection from the guest to somebody at the host's port.
    pub fn connect(&mut self, listener: &UnixListener, ports: (u32, u32)) -> UnixStream {
        self.say(op::REQUEST, ports);
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

/// Everything up to the end. A connection that was reset has no end but an error.
pub(super) fn read_to_end(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Bytes that differ from place to place and from seed to seed.
pub(super) fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// A test has both ends of its connections, more than the usual 1024 descriptors.
#[allow(unsafe_code)]
pub(super) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid struct, and raising the limit touches nothing else.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(65_536);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}
