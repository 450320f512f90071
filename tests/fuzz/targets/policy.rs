//! Fuzzes the filter of a network policy with frames of a guest and of its far side.
//!
//! Whatever comes: the streams of connections whose name is judged begin with a whole first message that has
//! an allowed name, or with a short piece of one.
#![no_main]

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_vmm::policy::{
    Content, Copied, Filter, Flags, Frame, HelloStart, Interface, Judge, Name, Offload, Outcome, Taken,
    Transport, Version, read_hello,
};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const GUEST: [u8; 4] = [10, 118, 111, 15];
/// Addresses of the far side: the first one has an allowed name.
const FAR: [[u8; 4]; 3] = [[192, 0, 2, 1], [192, 0, 2, 2], [10, 0, 0, 1]];
const PORTS: [u16; 5] = [443, 80, 53, 853, 5432];
/// A first message of TLS for `www.example.org`, and one for `evil.test`.
const HELLOS: [&[u8]; 2] = [
    b"\x16\x03\x01\x00\x4d\x01\x00\x00\x49\x03\x03RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR\x00\x00\x02\x13\x01\x01\
      \x00\x00\x1e\x00\x2b\x00\x02\x03\x04\x00\x00\x00\x14\x00\x12\x00\x00\x0fwww.example.org",
    b"\x16\x03\x01\x00\x47\x01\x00\x00\x43\x03\x03RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR\x00\x00\x02\x13\x01\x01\
      \x00\x00\x18\x00\x2b\x00\x02\x03\x04\x00\x00\x00\x0e\x00\x0c\x00\x00\x09evil.test",
];

#[derive(Debug, Arbitrary)]
struct Input {
    policy: u8,
    knows_addresses: bool,
    acts: Vec<Act>,
}

#[derive(Debug, Arbitrary)]
enum Act {
    /// Any frame of the guest or of the far side.
    Raw {
        is_of_guest: bool,
        bytes: Vec<u8>,
        offload: u8,
    },
    /// A packet of IPv4 between the two.
    Packet {
        is_of_guest: bool,
        far: u8,
        protocol: u8,
        content: Vec<u8>,
    },
    Segment(Segment),
    Pass(u16),
    Pin(u8),
    Change(u8),
    Restore,
}

#[derive(Debug, Arbitrary)]
struct Segment {
    is_of_guest: bool,
    far: u8,
    port: u8,
    flags: u8,
    sequence: u16,
    acknowledged: u16,
    hello: Option<(bool, u8, u8)>,
    payload: Vec<u8>,
    offload: u8,
}

struct Wire {
    filter: Filter,
    now: Instant,
    /// The policy from the start on, if it denies all but names and a network.
    is_strict: bool,
    /// The streams that far sides got, by the guest's end and their address.
    streams: HashMap<(IpAddr, u16, IpAddr), Stream>,
}

/// The stream of a connection to port 443, as far as it left.
struct Stream {
    /// Number of its first byte.
    base: u32,
    /// The first value of each byte: a far side ignores others.
    bytes: BTreeMap<u32, u8>,
    /// The guest opened it once. A second time, it may be another connection.
    is_one: bool,
}

/// Shortest first piece of a message behind which the others leave at once.
const LEAST_FIRST: usize = 64;
/// Bytes of a stream that are looked at.
const MOST: u32 = 100_000;

impl Stream {
    /// Checks what the far side has.
    fn check(&self) {
        let bytes: Vec<u8> = (0..).map_while(|at| self.bytes.get(&at).copied()).collect();
        match read_hello(&bytes) {
            _ if bytes.is_empty() && self.bytes.is_empty() => {}
            HelloStart::Whole(hello, _) => {
                let name = hello.name.expect("a name: none is denied");
                assert!(name.as_str().ends_with(".example.org"), "a denied name leaves: {name}");
            }
            HelloStart::Partial if (1..LEAST_FIRST).contains(&bytes.len()) => {}
            other => panic!("bytes leave before a message was judged: {other:?}"),
        }
    }
}

fn judge(number: u8) -> Arc<Judge> {
    let policy = [
        r#"{"default":"deny","allow":["*.example.org"]}"#,
        r#"{"deny":["evil.test"],"ech":"refuse"}"#,
        r#"{"default":"deny","allow":["*.example.org:443","10.0.0.0/8"],"denial":"drop"}"#,
        "{}",
    ][usize::from(number) % 4];
    let host: IpAddr = Ipv4Addr::new(198, 51, 100, 7).into();
    Arc::new(Judge::new(&serde_json::from_str(policy).expect("a policy"), [host.into()]).expect("a policy"))
}

fn offload(number: u8) -> Offload {
    let checksum = (number & 1 != 0).then_some((34, 16));
    let segments = [None, Some(Version::V4), Some(Version::V6), None][usize::from(number >> 1) % 4];
    Offload { checksum, segments }
}

/// A frame with a packet of IPv4.
fn packet(is_of_guest: bool, far: [u8; 4], protocol: u8, content: &[u8]) -> Vec<u8> {
    let (macs, ends) = match is_of_guest {
        true => ([ROUTER, MAC], [GUEST, far]),
        false => ([MAC, ROUTER], [far, GUEST]),
    };
    let len = u16::try_from(20 + content.len()).unwrap_or(u16::MAX);
    let mut head = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    head[2..4].copy_from_slice(&len.to_be_bytes());
    head[12..16].copy_from_slice(&ends[0]);
    head[16..].copy_from_slice(&ends[1]);
    let sum: u32 = head.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    [&macs.concat()[..], &[8, 0], &head, content].concat()
}

impl Segment {
    fn frame(&self) -> Vec<u8> {
        let far = FAR[usize::from(self.far) % FAR.len()];
        let port = PORTS[usize::from(self.port) % PORTS.len()].to_be_bytes();
        let ports = if self.is_of_guest { [[15, 160], port] } else { [port, [15, 160]] };
        let mut payload = self.payload.clone();
        if let Some((is_evil, from, len)) = self.hello {
            let hello = HELLOS[usize::from(is_evil)];
            let from = usize::from(from).min(hello.len());
            payload = hello[from..hello.len().min(from + usize::from(len))].to_vec();
        }
        let numbers = [u32::from(self.sequence), u32::from(self.acknowledged)].map(u32::to_be_bytes);
        let tcp = [&ports.concat()[..], &numbers.concat(), &[0x50, self.flags, 16, 0, 0, 0, 0, 0], &payload];
        packet(self.is_of_guest, far, 6, &tcp.concat())
    }
}

impl Wire {
    fn outgoing(&mut self, bytes: &[u8], offload: Offload) {
        let head = &bytes[..bytes.len().min(134)];
        match self.filter.outgoing(head, bytes.len(), offload, self.now) {
            Outcome::Pass => self.leaves(bytes),
            Outcome::Take(Taken::Hello) => {
                let copied = Copied { header: [0; 12], frame: bytes.into() };
                let held = self.filter.hold(&copied, offload, self.now);
                held.to_far.iter().for_each(|copied| self.leaves(&copied.frame));
            }
            Outcome::Stop(..) | Outcome::Take(_) | Outcome::Answer(_) => {}
        }
    }

    /// Follows a frame that leaves, and checks the stream that it is of.
    fn leaves(&mut self, bytes: &[u8]) {
        let frame = Frame::parse(bytes, bytes.len()).expect("a frame that was judged");
        let Content::Packet(packet) = frame.content else { return };
        let Transport::Tcp(segment) = packet.transport else { return };
        let is_judged = FAR[..2].iter().any(|far| IpAddr::from(*far) == packet.target);
        if !self.is_strict || !is_judged || segment.target != 443 {
            return;
        }
        let key = (packet.source, segment.source, packet.target);
        if segment.flags == (Flags { syn: true, ..Flags::default() }) {
            let base = segment.sequence.wrapping_add(1);
            match self.streams.get_mut(&key) {
                Some(stream) if stream.base == base => stream.is_one = false,
                _ => {
                    let stream = Stream { base, bytes: BTreeMap::new(), is_one: true };
                    self.streams.insert(key, stream);
                }
            }
        }
        let payload = &bytes[packet.payload.0..packet.payload.1];
        let Some(stream) = self.streams.get_mut(&key).filter(|_| !payload.is_empty()) else {
            assert!(payload.is_empty(), "bytes leave for a connection that no SYN opened");
            return;
        };
        for (number, byte) in payload.iter().enumerate() {
            let at = segment.sequence.wrapping_add(number as u32).wrapping_sub(stream.base);
            if at < MOST {
                stream.bytes.entry(at).or_insert(*byte);
            }
        }
        if stream.is_one {
            stream.check();
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Raw { is_of_guest: true, bytes, offload: number } => self.outgoing(&bytes, offload(number)),
            Act::Raw { bytes, .. } => drop(self.filter.incoming(&bytes, bytes.len(), self.now)),
            Act::Packet { is_of_guest, far, protocol, content } => {
                let frame = packet(is_of_guest, FAR[usize::from(far) % FAR.len()], protocol, &content);
                match is_of_guest {
                    true => self.outgoing(&frame, Offload::default()),
                    false => drop(self.filter.incoming(&frame, frame.len(), self.now)),
                }
            }
            Act::Segment(segment) => {
                let frame = segment.frame();
                match segment.is_of_guest {
                    true => self.outgoing(&frame, offload(segment.offload)),
                    false => drop(self.filter.incoming(&frame, frame.len(), self.now)),
                }
            }
            Act::Pass(ms) => self.now += Duration::from_millis(u64::from(ms) * 10),
            Act::Pin(far) => {
                let address = FAR[usize::from(far) % FAR.len()].into();
                let name = Name::parse("www.example.org").expect("a name");
                self.filter.pin(&name, &[(address, u32::from(far))], self.now);
            }
            Act::Change(number) => {
                self.is_strict = false;
                drop(self.filter.change(judge(number), self.now));
            }
            Act::Restore => {
                let (pins, open) = (self.filter.save_pins(self.now), self.filter.save_connections());
                self.filter.resets_to_guest(&open, ROUTER).for_each(drop);
                self.filter.resets_to_far().for_each(drop);
                self.filter.begin_anew(MAC);
                self.streams.clear();
                self.filter.restore_pins(&pins, self.now);
            }
        }
    }
}

fuzz_target!(|input: Input| {
    let is_whole =
        |hello: &[u8]| matches!(read_hello(hello), HelloStart::Whole(_, len) if len == hello.len());
    assert!(HELLOS.into_iter().all(is_whole));
    let addresses = if input.knows_addresses { vec![IpAddr::from(GUEST).into()] } else { Vec::new() };
    let interface = Interface { mac: MAC, addresses, is_routed: false, forwarded: vec![80] };
    let mut wire = Wire {
        filter: Filter::new(judge(input.policy), interface),
        now: Instant::now(),
        is_strict: matches!(input.policy % 4, 0 | 2),
        streams: HashMap::new(),
    };
    for act in input.acts.into_iter().take(64) {
        wire.act(act);
    }
});
