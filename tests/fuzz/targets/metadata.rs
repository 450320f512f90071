//! Fuzzes the metadata service with frames of a guest: ARP, and TCP that carries requests or anything else.
#![no_main]

use std::collections::HashMap;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_vmm::fuzzing::metadata::Service;

const SERVICE: [u8; 4] = [169, 254, 169, 254];
/// Longest frame to the guest, and most that wait for it.
const LONGEST: usize = 1514;
const MOST_WAITING: usize = 64;
const SYN: u8 = 2;
const FIN: u8 = 1;

/// Parts of requests.
const WORDS: [&str; 20] = [
    "GET ",
    "PUT ",
    "/latest/user-data",
    "/latest/api/token",
    "/latest/long",
    "/n/1/",
    "http://169.254.169.254/",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "\r\n",
    "X-metadata-token-ttl-seconds: 60\r\n",
    "X-aws-ec2-metadata-token-ttl-seconds: 0\r\n",
    "X-metadata-token: ",
    "X-Forwarded-For: a\r\n",
    "Accept: application/json\r\n",
    "Content-Length: 3\r\n",
    "Content-Length: 4096\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "GET /latest/long HTTP/1.1\r\n\r\n",
];

#[derive(Debug, Arbitrary)]
struct Input {
    require_token: bool,
    acts: Vec<Act>,
}

#[derive(Debug, Arbitrary)]
enum Act {
    Raw(Vec<u8>),
    /// Any packet to the address.
    Packet(Vec<u8>),
    Question {
        sender: [u8; 6],
        address: [u8; 4],
    },
    Segment(Segment),
    /// Opens a connection and sends a request.
    Ask {
        port: u8,
        words: Vec<u8>,
    },
    Pass(u16),
    Take(u8),
    Restore,
}

#[derive(Debug, Arbitrary)]
struct Segment {
    /// The guest's port, one of 64.
    port: u8,
    to_port: Option<u16>,
    flags: u8,
    /// Distances from the right sequence number and acknowledgement.
    ahead: i8,
    acknowledges_less: u8,
    window: u16,
    options: Vec<u8>,
    carried: Vec<u8>,
    words: Vec<u8>,
}

/// The guest's end of a connection.
#[derive(Debug, Default)]
struct End {
    sent: u32,
    seen: u32,
}

struct Guest {
    service: Service,
    ends: HashMap<u16, End>,
}

fn text(words: &[u8]) -> Vec<u8> {
    words.iter().flat_map(|word| WORDS[usize::from(*word) % WORDS.len()].bytes()).collect()
}

fn frame(kind: [u8; 2], content: &[u8]) -> Vec<u8> {
    [&[2; 6], &[2, 0, 0, 0, 0, 1], &kind[..], content].concat()
}

impl Guest {
    fn packet(&mut self, protocol: u8, content: &[u8]) {
        let len = u16::try_from(20 + content.len()).unwrap_or(u16::MAX).to_be_bytes();
        let head = [&[0x45, 0], &len[..], &[0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 2], &SERVICE].concat();
        assert!(self.service.receive(&frame([8, 0], &[&head, content].concat())));
    }

    fn segment(&mut self, segment: &Segment) {
        let Segment { port, to_port, flags, ahead, acknowledges_less, window, options, carried, words } =
            segment;
        let port = 1024 + u16::from(port % 64);
        let end = self.ends.entry(port).or_default();
        let mut options = options[..options.len().min(40)].to_vec();
        options.resize(options.len().next_multiple_of(4), 0);
        let mut carried = carried.clone();
        carried.extend(text(words));
        carried.truncate(4000);
        let tcp = [
            &port.to_be_bytes()[..],
            &to_port.unwrap_or(80).to_be_bytes(),
            &end.sent.wrapping_add_signed((*ahead).into()).to_be_bytes(),
            &end.seen.wrapping_sub((*acknowledges_less).into()).to_be_bytes(),
            &[(5 + options.len() as u8 / 4) << 4, *flags],
            &window.to_be_bytes(),
            &[0; 4],
            &options,
            &carried,
        ];
        let counted = u32::from(flags & (SYN | FIN) != 0);
        end.sent = end.sent.wrapping_add(carried.len() as u32 + counted);
        self.packet(6, &tcp.concat());
        self.take(MOST_WAITING);
    }

    fn simple(&mut self, port: u8, flags: u8, words: &[u8]) {
        self.segment(&Segment {
            port,
            to_port: None,
            flags,
            ahead: 0,
            acknowledges_less: 0,
            window: 8192,
            options: Vec::new(),
            carried: Vec::new(),
            words: words.to_vec(),
        });
    }

    /// Takes frames, and learns from segments.
    fn take(&mut self, most: usize) {
        for _ in 0..most {
            let Some(frame) = self.service.next_frame() else { return };
            assert!((42..=LONGEST).contains(&frame.len()), "a frame of {} bytes", frame.len());
            assert_eq!(frame[6..12], [6, 1, 0x23, 0x45, 0x67, 1]);
            if frame[12..14] != [8, 0] {
                continue;
            }
            let number = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"));
            let (port, flags) = (u16::from_be_bytes([frame[36], frame[37]]), frame[47]);
            let carried = frame.len() - 34 - usize::from(frame[46] >> 4) * 4;
            let counted = u32::from(flags & (SYN | FIN) != 0);
            let end = self.ends.entry(port).or_default();
            end.seen = number(38).wrapping_add(carried as u32 + counted);
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Raw(bytes) => {
                self.service.receive(&bytes);
            }
            Act::Packet(bytes) => {
                let mut bytes = frame([8, 0], &bytes);
                bytes.resize(bytes.len().max(34), 0);
                bytes[30..34].copy_from_slice(&SERVICE);
                assert!(self.service.receive(&bytes));
            }
            Act::Question { sender, address } => {
                let start = [0, 1, 8, 0, 6, 4, 0, 1];
                let content = [&start[..], &sender, &address, &[0; 6], &SERVICE].concat();
                assert!(self.service.receive(&frame([8, 6], &content)));
            }
            Act::Segment(segment) => self.segment(&segment),
            Act::Ask { port, words } => {
                self.simple(port, SYN, &[]);
                self.simple(port, 16, &words);
                self.simple(port, 16, &[]);
            }
            Act::Pass(ms) => {
                self.service.pass(Duration::from_millis(ms.into()));
            }
            Act::Take(most) => self.take(most.into()),
            Act::Restore => self.service.reset(),
        }
    }
}

fuzz_target!(|input: Input| {
    let mut guest = Guest { service: Service::new(input.require_token), ends: HashMap::new() };
    for act in input.acts.into_iter().take(48) {
        guest.act(act);
        let most = MOST_WAITING + 1;
        let waiting = std::iter::from_fn(|| guest.service.next_frame()).take(most).count();
        assert!(waiting < most, "too many frames wait");
    }
    // Time ends every connection.
    let mut busy = true;
    for _ in 0..200 {
        busy = guest.service.pass(Duration::from_secs(5));
        guest.take(MOST_WAITING);
    }
    assert!(!busy, "a connection is left");
});
