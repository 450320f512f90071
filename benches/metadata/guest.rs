//! The guest, in this process.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::config::Devices;
use volt_vmm::config::devices::{NetBackend, NetConfig};
use volt_vmm::config::metadata::MetadataConfig;
use volt_vmm::{Console, MetadataStore, Vm, VmConfig};

/// Longest time for a round.
const LIMIT: Duration = Duration::from_secs(120);

/// How the guest sends its requests.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Connections,
    KeptAlive,
}

/// A VM with the service.
pub struct Guest {
    vm: Vm,
    said: Receiver<String>,
    store: MetadataStore,
}

/// Sends on the lines of a guest.
struct Lines {
    line: String,
    lines: Sender<String>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            match byte {
                b'\n' => drop(self.lines.send(std::mem::take(&mut self.line))),
                byte => self.line.push(char::from(*byte)),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Guest {
    /// Boots a guest that sends so many requests in each round.
    ///
    /// # Errors
    /// The host refuses a tap or a VM.
    pub fn boot(requests: u64, scratch: &Scratch) -> Result<Self> {
        let kernel = scratch.program("small-guest", programs::SMALL_GUEST)?;
        let (lines, said) = channel();
        let store = MetadataStore::new(1 << 20);
        let tap = NetBackend::Tap(format!("vm{}", std::process::id()));
        let service = MetadataConfig::new(["eth0"]).store(store.clone());
        let devices = Devices::default().network(NetConfig::new("eth0", tap)).metadata(service);
        let cmdline = format!("metadata requests={requests}");
        let config = VmConfig::new(&kernel).cmdline(cmdline).memory_mib(64).devices(devices);
        let console = Console::to(Lines { line: String::new(), lines });
        let vm = Vm::builder().config(config).console(console).start().or_say("boot a guest")?;
        let guest = Self { vm, said, store };
        guest.hear("ready")?;
        Ok(guest)
    }

    /// Stores what the guest gets.
    ///
    /// # Errors
    /// It is too large.
    pub fn store(&self, content: &Value) -> Result<()> {
        self.store.put(content.clone()).or_say("store metadata")
    }

    /// Takes a round. Returns its duration.
    ///
    /// # Errors
    /// The guest gets another answer, or none.
    pub fn measure(&self, way: Way) -> Result<Duration> {
        let order = match way {
            Way::Connections => b"c",
            Way::KeptAlive => b"k",
        };
        let start = Instant::now();
        self.vm.type_in(order).or_say("type")?;
        self.hear("requests ")?;
        Ok(start.elapsed())
    }

    fn hear(&self, start: &str) -> Result<()> {
        loop {
            let line = self.said.recv_timeout(LIMIT).or_say("hear from the guest")?;
            if line.starts_with("WRONG") {
                return Err(format!("the guest reports {line}"));
            }
            if line.starts_with(start) {
                return Ok(());
            }
        }
    }
}
