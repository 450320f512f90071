//! Workloads, and how one run of each is done.

use std::time::Duration;

use volt_benches::guest::Measured;
use volt_benches::{Result, stats};

use crate::backends::Vm;
use crate::servers::Server;

/// How often a run may be tried whose connection is reset, and how the guest reports that.
const MOST_TRIES: usize = 10;
const RESET: &str = "reset by peer";

/// An act over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Send,
    Receive,
    Ping,
    Connect,
    HttpReceive,
    HttpConnect,
}

/// One measurement, with the processor time that the interface's thread in volt-vmm spent meanwhile.
#[derive(Clone, Debug)]
pub struct Sample {
    pub measured: Measured,
    pub spent: Duration,
}

impl Workload {
    pub const ALL: [Self; 6] =
        [Self::Send, Self::Receive, Self::Ping, Self::Connect, Self::HttpReceive, Self::HttpConnect];

    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "from the guest",
            Self::Receive => "to the guest",
            Self::Ping => "round trip",
            Self::Connect => "connection",
            Self::HttpReceive => "HTTP, to the guest",
            Self::HttpConnect => "HTTP, connection",
        }
    }

    /// Whether it moves as many bytes as it can. Others repeat an act.
    pub fn is_bulk(self) -> bool {
        matches!(self, Self::Send | Self::Receive | Self::HttpReceive)
    }

    fn server(self) -> Server {
        match self {
            Self::Send => Server::Sink,
            Self::Receive | Self::HttpReceive => Server::Source,
            Self::Ping | Self::Connect | Self::HttpConnect => Server::Echo,
        }
    }

    /// Does it once, without the policy or with it.
    ///
    /// # Errors
    /// The guest fails.
    pub fn run(self, vm: &mut Vm, has_policy: bool, ms: u64) -> Result<Sample> {
        let server = self.server();
        if vm.backend.has_policy() {
            vm.set_policy(has_policy)?;
        }
        if has_policy {
            vm.ask(server.name())?;
        }
        let (kind, port) = match self {
            Self::HttpReceive | Self::HttpConnect => ("http", 80),
            _ => ("tls", 443),
        };
        let to = format!("{kind}:{}:{port}/{}", server.address(), server.name());
        let order = match self {
            Self::Send => format!("bench-stream {to} send {ms}"),
            Self::Receive | Self::HttpReceive => format!("bench-stream {to} receive {ms}"),
            Self::Ping => format!("bench-stream {to} ping {ms}"),
            Self::Connect | Self::HttpConnect => format!("bench-connect {to} {ms}"),
        };
        let mut tries = 1..=MOST_TRIES;
        loop {
            let before = vm.spent()?;
            match vm.guest.measure(&order) {
                Ok(measured) => return Ok(Sample { measured, spent: vm.spent()?.saturating_sub(before) }),
                Err(error) if !error.contains(RESET) || tries.next().is_none() => return Err(error),
                Err(_) => vm.resets[usize::from(has_policy)] += 1,
            }
        }
    }
}

impl Sample {
    /// Time of one operation, or of a MiB.
    pub fn cost(&self, workload: Workload) -> Duration {
        self.measured.took.div_f64(self.count(workload))
    }

    /// Processor time of one operation, or of a MiB.
    pub fn spent(&self, workload: Workload) -> Duration {
        self.spent.div_f64(self.count(workload))
    }

    fn count(&self, workload: Workload) -> f64 {
        let bytes = stats::mib(self.measured.bytes);
        if workload.is_bulk() { bytes } else { (self.measured.operations as f64).max(1.0) }
    }
}
