//! The guests of the soak: one of each kind.

use std::path::PathBuf;

use serde_json::{Value, json};
use volt_tests::streams::echoes;
use volt_tests::vsock::connect;
use volt_tests::{Boot, Guest, Scratch, Snapshot};

/// Slots of a guest with a disk, and sectors between them: more than a cluster.
const SLOTS: u64 = 8;
const FAR: u64 = 136;
const PAGES_PER_MIB: u64 = 256;

/// The work of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Checks and changes its memory.
    Memory,
    /// Checks and changes records on a disk with a layer, by this engine.
    Disk(&'static str),
    /// Runs two timers.
    Timers,
    /// Draws random numbers.
    Random,
    /// Sends back what comes over vsock.
    Vsock,
    /// Gives pages to its balloon.
    Balloon,
    /// Linux, which does all of this at once.
    Linux,
}

const SMALL: [Kind; 7] = [
    Kind::Memory,
    Kind::Disk("sync"),
    Kind::Disk("io_uring"),
    Kind::Timers,
    Kind::Random,
    Kind::Vsock,
    Kind::Balloon,
];

/// A guest, and how it came to be.
pub struct Member {
    pub kind: Kind,
    pub guest: Guest,
    /// Clones never replace it, so that its process lives through the whole soak.
    pub is_elder: bool,
    pub is_restored: bool,
    /// The socket of its vsock device.
    vsock: Option<PathBuf>,
    /// Keeps the layers and sockets of all generations.
    pub scratch: Scratch,
}

/// All guests.
pub struct Herd {
    pub members: Vec<Member>,
    /// Snapshots, pagers' sockets and files of children.
    pub scratch: Scratch,
}

impl Herd {
    pub fn new(linux: bool) -> Self {
        let kinds: &[Kind] = if linux { &[Kind::Linux; 2] } else { &SMALL };
        // The first of each kind lives on. Others are replaced by their clones.
        let elders = kinds.iter().map(|kind| Member::boot(*kind, true));
        let others = kinds.iter().filter(|_| !linux).map(|kind| Member::boot(*kind, false));
        Self { members: elders.chain(others).collect(), scratch: Scratch::new() }
    }
}

impl Member {
    fn boot(kind: Kind, is_elder: bool) -> Self {
        let scratch = Scratch::new();
        let vsock = matches!(kind, Kind::Vsock | Kind::Linux).then(|| scratch.fresh("vsock"));
        let device =
            vsock.as_ref().map(|socket| ["--vsock".to_owned(), format!("cid=5,socket={}", socket.display())]);
        let boot = kind.boot(&scratch).scratch(&scratch).device(device.into_iter().flatten());
        let mut guest = boot.start();
        kind.begin(&mut guest);
        let mut member = Self { kind, guest, is_elder, is_restored: false, vsock, scratch };
        member.goes_on();
        member
    }

    /// Restores a clone of this guest, with resources of its own.
    pub fn clone_of(&self, snapshot: &Snapshot, options: &[&str]) -> Self {
        let vsock = self.vsock.as_ref().map(|_| self.scratch.fresh("vsock"));
        let device =
            vsock.as_ref().map(|socket| ["--vsock".to_owned(), format!("cid=5,socket={}", socket.display())]);
        let device: Vec<String> = device.into_iter().flatten().collect();
        let options: Vec<&str> = options.iter().copied().chain(device.iter().map(String::as_str)).collect();
        let guest = snapshot.restore_as(&options);
        Self {
            kind: self.kind,
            guest,
            is_elder: false,
            is_restored: true,
            vsock,
            scratch: self.scratch.clone(),
        }
    }

    /// Waits until the guest has gone on and checked its content.
    pub fn goes_on(&mut self) {
        let (name, more) = match self.kind {
            // 64 pages a number: twice through 1 MiB.
            Kind::Memory => ("count", 9),
            Kind::Disk(_) => ("synced", SLOTS + 4),
            Kind::Timers => ("ticks", 20),
            Kind::Random => ("drawn", 4),
            Kind::Vsock => return self.echoes(),
            Kind::Balloon => return self.inflates(),
            Kind::Linux => return self.linux_goes_on(),
        };
        let first = self.guest.next_number(name);
        while self.guest.next_number(name) < first + more {}
        self.is_sound();
    }

    /// Stops the VM, which removes its files.
    pub fn end(mut self) {
        assert_eq!(self.guest.ask("PUT", "/v1/stop", ""), (204, String::new()));
        self.guest.wait_exit();
    }

    fn is_sound(&self) {
        let said = self.guest.output();
        assert!(!said.contains("WRONG") && !said.contains("corrupt"), "{:?}: {said}", self.kind);
    }

    fn echoes(&self) {
        let socket = self.vsock.as_ref().expect("a vsock device");
        echoes(&connect(socket, 1000), &[7; 5000]);
        self.is_sound();
    }

    /// Changes the balloon's size, and waits for the guest.
    fn inflates(&mut self) {
        let (_, answer) = self.guest.ask("GET", "/balloon", "");
        let now: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{answer}: {error}"));
        let mib = (now["amount_mib"].as_u64().expect("a size") + 1) % 4;
        let change = json!({ "amount_mib": mib }).to_string();
        assert_eq!(self.guest.ask("PATCH", "/balloon", &change), (204, String::new()));
        while self.guest.next_number("balloon") != mib * PAGES_PER_MIB {}
        self.is_sound();
    }

    fn linux_goes_on(&mut self) {
        self.guest.next_number("count");
        self.guest.order("random");
        self.guest.next_number("churn");
        self.echoes();
    }

    /// Tells whether children can run beside this guest without resources of their own.
    pub fn can_fork(&self) -> bool {
        matches!(self.kind, Kind::Memory | Kind::Timers | Kind::Random)
    }

    /// The name and the distance of numbers by which a child shows that it goes on.
    pub fn number(&self) -> (&'static str, u64) {
        match self.kind {
            Kind::Timers => ("ticks", 20),
            Kind::Random => ("drawn", 4),
            _ => ("count", 9),
        }
    }

    /// Tells whether a rewind suits it. A disk would have to go back, too.
    pub fn can_rewind(&self) -> bool {
        self.is_restored && self.can_fork()
    }
}

impl Kind {
    fn boot(self, scratch: &Scratch) -> Boot<'static> {
        match self {
            Self::Memory => Boot::small("count mib=1"),
            Self::Disk(engine) => {
                let base = image(scratch, (SLOTS + 1) * FAR);
                Boot::small(&format!("records verify=1 slots={SLOTS} stride={FAR}"))
                    .device(["--disk".to_owned(), layered(scratch, &base, engine)])
            }
            Self::Timers => Boot::small("ticks").irqchip("kernel"),
            Self::Random => Boot::small("random").device(["--rng"]),
            Self::Vsock => Boot::small("vsock"),
            Self::Balloon => Boot::small("balloon mib=8").device(["--balloon"]),
            Self::Linux => {
                let base = image(scratch, 64 << 11);
                Boot::linux().device(["--disk".to_owned(), layered(scratch, &base, "io_uring")]).device([
                    "--rng",
                    "--balloon",
                    "reporting",
                ])
            }
        }
    }

    fn begin(self, guest: &mut Guest) {
        if self == Self::Linux {
            guest.wait_until_ready();
            for order in ["vsock-echo 1000", "fill 8", "count", "churn /dev/vda 128"] {
                guest.order(order);
            }
        }
    }
}

fn layered(scratch: &Scratch, base: &std::path::Path, engine: &str) -> String {
    format!("path={},layer={},id=root,engine={engine}", base.display(), scratch.fresh("layer").display())
}

/// Makes an image with record 0 in each slot.
fn image(scratch: &Scratch, sectors: u64) -> PathBuf {
    let path = scratch.fresh("base");
    let bytes: Vec<u8> = (0..sectors * 64).flat_map(u64::to_le_bytes).collect();
    std::fs::write(&path, bytes).expect("write an image");
    path
}
