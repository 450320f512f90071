//! Workloads, and how one run of each is done.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use volt_benches::guest::Measured;
use volt_benches::peer::{Place, Role};
use volt_benches::{OrSay, Result};

use crate::counters::Counts;
use crate::options::{self, Options};
use crate::vms::{ENGINES, Vm};

/// The port of the host where the guest's streams end.
const PORT: u16 = 7000;
/// Bytes of a stream that count as one operation.
pub const STEP: f64 = 65536.0;

/// Something to do with a device.
#[derive(Clone, Debug)]
pub enum Workload {
    Disk { number: usize, act: &'static str, kib: u64, depth: u64 },
    Tcp(Way),
    Vsock(Way),
}

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Send,
    Receive,
    Ping,
}

/// One measurement, with what the host counted.
pub struct Sample {
    pub measured: Measured,
    pub counts: Counts,
}

impl Workload {
    /// Those that both VMMs do.
    pub fn of_both(options: &Options) -> Vec<Self> {
        let mut all = Vec::new();
        if options.only.has(&options::Part::Disk) {
            for number in 0..ENGINES.len() {
                for depth in [1, 16] {
                    let way = |act, kib| Self::Disk { number, act, kib, depth };
                    all.extend([way("read", 128), way("write", 128)]);
                    all.extend([way("random-read", 4), way("random-write", 4)]);
                }
            }
        }
        if options.only.has(&options::Part::Net) {
            all.extend([Way::Send, Way::Receive, Way::Ping].map(Self::Tcp));
        }
        all.retain(|workload| workload.name().contains(&options.part_of_name));
        all
    }

    /// Does it for so many milliseconds.
    ///
    /// # Errors
    /// The guest fails, or the other side of its stream.
    pub fn run(&self, vm: &mut Vm, ms: u64) -> Result<Sample> {
        let (order, peer) = match self {
            Self::Disk { number, act, kib, depth } => {
                let letter = char::from(b'a' + *number as u8);
                (format!("bench-disk /dev/vd{letter} {act} {kib} {depth} {ms}"), None)
            }
            Self::Tcp(way) => {
                let place = TcpListener::bind((vm.gateway.as_str(), PORT)).or_say("listen for the guest")?;
                let order = format!("bench-stream tcp:{}:{PORT} {} {ms}", vm.gateway, way.word());
                (order, Some(Place::Tcp(place).serve(way.role())))
            }
            Self::Vsock(way) => {
                let mut path = vm.vsock.clone().ok_or("a VM without vsock")?.into_os_string();
                path.push(format!("_{PORT}"));
                let _ = std::fs::remove_file(&path); // of the run before
                let place = UnixListener::bind(&path).or_say("listen for the guest")?;
                let order = format!("bench-stream vsock:{PORT} {} {ms}", way.word());
                (order, Some(Place::Unix(place).serve(way.role())))
            }
        };
        let before = Counts::now();
        let measured = vm.guest.measure(&order)?;
        let counts = Counts::now().since(before);
        peer.map_or(Ok(()), join)?;
        Ok(Sample { measured, counts })
    }

    /// Its name in tables.
    pub fn name(&self) -> String {
        match self {
            Self::Disk { number, act, kib, depth } => {
                let (volt, qemu) = ENGINES[*number];
                let engine = if volt == qemu { volt.to_owned() } else { format!("{volt} / {qemu}") };
                format!("{engine}: {} {kib} KiB, {depth} at a time", act.replace('-', " "))
            }
            Self::Tcp(Way::Ping) => "TCP round trip of a byte".to_owned(),
            Self::Tcp(way) => format!("TCP, guest {}s", way.word()),
            Self::Vsock(way) => format!("vsock, guest {}s", way.word()),
        }
    }

    /// The unit of its result, of which more is better.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Disk { .. } => "requests/s",
            Self::Tcp(Way::Ping) | Self::Vsock(Way::Ping) => "round trips/s",
            Self::Tcp(_) | Self::Vsock(_) => "MiB/s",
        }
    }

    /// How often it did what it costs time to do: a request, a round trip, so many bytes.
    pub fn operations(&self, measured: &Measured) -> f64 {
        match self {
            Self::Disk { .. } | Self::Tcp(Way::Ping) | Self::Vsock(Way::Ping) => measured.operations as f64,
            Self::Tcp(_) | Self::Vsock(_) => measured.bytes as f64 / STEP,
        }
    }

    /// Whether it is known how long a single operation takes.
    pub fn has_operations(&self) -> bool {
        matches!(self, Self::Disk { .. } | Self::Tcp(Way::Ping) | Self::Vsock(Way::Ping))
    }
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Ping => "ping",
        }
    }

    fn role(self) -> Role {
        match self {
            Self::Send => Role::Sink,
            Self::Receive => Role::MemorySource,
            Self::Ping => Role::Echo,
        }
    }
}

fn join(peer: JoinHandle<std::io::Result<()>>) -> Result<()> {
    peer.join()
        .map_err(|_| "the other side of a stream panicked".to_owned())?
        .or_say("do the host's part of a stream")
}
