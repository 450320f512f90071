//! The acts of the library that are compared. A line of standard input names one, a line of standard output
//! says what it took.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::first_byte::FirstByte;
use volt_benches::guest_memory::{Memory, codecs};
use volt_benches::scratch::Scratch;
use volt_benches::shuffle::shuffle;
use volt_benches::wire::Wire;
use volt_benches::{OrSay, Result, process, programs};
use volt_vmm::config::devices::{NetBackend, NetConfig};
use volt_vmm::internal::lazy_base::LazyBase;
use volt_vmm::internal::pack::{Decoder, Pack};
use volt_vmm::{
    Console, Packing, Pool, RestoreOptions, Snapshot, SnapshotKind, SnapshotOptions, Store, Vm, VmConfig,
    VmShape,
};

/// Acts on VMs.
pub const LIBRARY: &[&str] = &[
    "boot, call to first byte",
    "restore, call to first byte",
    "restore of a diff, call to first byte",
    "restore from a pool, call to first byte",
    "fork, call to first byte",
    "fork from a pool, call to first byte",
    "rewind",
    "snapshot",
    "diff",
    "net, a frame and its answer",
];
/// Acts on packed memory.
pub const MEMORY: &[&str] =
    &["pack, lz4", "pack, zstd", "unpack, lz4", "unpack, zstd", "fault, lz4", "fault, zstd"];

/// No act, but how those are done that follow: before all other programs.
pub const GO_FIRST: &str = "go first";

/// Guest memory.
const MIB: u64 = 128;
/// MiB that the busy guest writes to, again and again.
const BUSY_MIB: u64 = 16;
/// For so long it does, before an act.
const BUSY: Duration = Duration::from_millis(20);
/// Frames of one act on a network interface.
const FRAMES: u32 = 20;
/// Between two acts: what the kernel still does for the end of a VM is not the next one's to pay for.
const REST: Duration = Duration::from_millis(20);
/// How long a guest may take to its first byte.
const LIMIT: Duration = Duration::from_secs(60);

/// Times of one act, each with the end of its row's name.
type Timed = Vec<(&'static str, Duration)>;

/// Serves acts until there are no more lines.
///
/// # Errors
/// The first act that fails ends it, having said why.
pub fn serve(memory: Option<PathBuf>) -> Result<()> {
    let mut probe = Probe { scratch: Scratch::new()?, vms: None, memory, packed: None };
    for line in std::io::stdin().lock().lines() {
        let act = line.or_say("read what to do")?;
        let times = match probe.act(&act) {
            Ok(times) => times,
            Err(error) => {
                println!("{}", error.replace('\n', " "));
                return Err(error);
            }
        };
        let times: Vec<_> = times.iter().map(|(part, time)| format!("{part}={}", time.as_nanos())).collect();
        println!("{}", times.join(";"));
    }
    Ok(())
}

/// Runs acts. Makes what an act needs when the first one needs it.
struct Probe {
    scratch: Scratch,
    vms: Option<Vms>,
    memory: Option<PathBuf>,
    packed: Option<Packed>,
}

impl Probe {
    fn act(&mut self, act: &str) -> Result<Timed> {
        let whole = |time| Ok(vec![("", time)]);
        if act == GO_FIRST {
            return process::go_first().and_then(|()| whole(Duration::ZERO));
        }
        if let Some((act @ ("pack" | "unpack" | "fault"), codec)) = act.split_once(", ") {
            if self.packed.is_none() {
                let path = self.memory.clone().ok_or("no memory was given")?;
                self.packed = Some(Packed::new(path)?);
            }
            let packed = self.packed.as_ref().ok_or("no packed memory")?;
            return whole(packed.act(act, codec)?);
        }
        if self.vms.is_none() {
            self.vms = Some(Vms::new(&self.scratch)?);
        }
        let vms = self.vms.as_mut().ok_or("no VMs")?;
        thread::sleep(REST);
        match act.split_once(", call").map_or(act, |(act, _)| act) {
            "boot" => whole(vms.boot()?),
            "restore" => whole(vms.restore(&vms.warm, false)?),
            "restore of a diff" => whole(vms.restore(&vms.diff, false)?),
            "restore from a pool" => whole(vms.restore(&vms.warm, true)?),
            "fork" => whole(vms.fork(false)?),
            "fork from a pool" => whole(vms.fork(true)?),
            "rewind" => whole(vms.rewind()?),
            "snapshot" => vms.snapshot(SnapshotKind::Full),
            "diff" => vms.snapshot(SnapshotKind::Diff),
            "net, a frame and its answer" => whole(vms.exchange_frames()?),
            _ => Err(format!("{act:?} is no act of this probe")),
        }
    }
}

/// The VMs, none of which runs while no act does.
struct Vms {
    kernel: PathBuf,
    small: PathBuf,
    store: Store,
    warm: Snapshot,
    /// A diff on that.
    diff: Snapshot,
    pool: Arc<Pool>,
    /// Forked again and again.
    parent: Vm,
    /// Writes all the time.
    busy: Vm,
    /// The same, restored, to be rewound.
    rewound: Vm,
    /// Answers frames. Made by the first act that needs it, so that the others need no privilege.
    answering: Option<(Vm, Wire)>,
}

impl Vms {
    fn new(scratch: &Scratch) -> Result<Self> {
        let store = Store::open(&scratch.path("").display().to_string()).or_say("open a store")?;
        let kernel = scratch.program("chatter", programs::CHATTER)?;
        let small = scratch.program("small-guest", programs::SMALL_GUEST)?;
        let (parent, _) = boot(&kernel, "")?;
        parent.snapshot(&store, "warm").or_say("take a snapshot")?;
        let options = SnapshotOptions::default().diff();
        parent.snapshot_with(&store, "warm-diff", &options).or_say("take a diff")?;
        parent.pause().or_say("pause")?;
        let diff = Snapshot::open(&store, "warm-diff").or_say("open the diff")?;
        let warm = Snapshot::open(&store, "warm").or_say("open the snapshot")?;
        let pool = Arc::new(Pool::new(VmShape::of(warm.config()), 2).or_say("make a pool")?);
        let (busy, _) = boot(&small, &format!("churn mib={BUSY_MIB}"))?;
        thread::sleep(BUSY);
        busy.snapshot(&store, "busy").or_say("take a snapshot")?;
        busy.pause().or_say("pause")?;
        let options = RestoreOptions::default().rewindable().paused();
        let again = Snapshot::open(&store, "busy").or_say("open the snapshot")?;
        let rewound = again.restore_with(options).or_say("restore")?;
        Ok(Self { kernel, small, store, warm, diff, pool, parent, busy, rewound, answering: None })
    }

    fn boot(&self) -> Result<Duration> {
        boot(&self.kernel, "").map(|(_, took)| took)
    }

    /// A place in the pool, if that is to be used.
    fn pooled(&self, pooled: bool) -> Result<Option<Arc<Pool>>> {
        if !pooled {
            return Ok(None);
        }
        self.pool.wait_ready().or_say("wait for the pool")?;
        thread::sleep(REST);
        Ok(Some(Arc::clone(&self.pool)))
    }

    fn restore(&self, snapshot: &Snapshot, pooled: bool) -> Result<Duration> {
        let pool = self.pooled(pooled)?;
        first_byte(|console| {
            let options = RestoreOptions::default().console(console).pool(pool);
            snapshot.restore_with(options).or_say("restore")
        })
    }

    fn fork(&self, pooled: bool) -> Result<Duration> {
        let pool = self.pooled(pooled)?;
        // The guest of a paused parent does not run in its children either.
        self.parent.resume().or_say("resume")?;
        let took = first_byte(|console| {
            self.parent.fork([RestoreOptions::default().console(console).pool(pool)]).or_say("fork")
        })?;
        self.parent.pause().or_say("pause")?;
        Ok(took)
    }

    fn rewind(&self) -> Result<Duration> {
        self.rewound.resume().or_say("resume")?;
        thread::sleep(BUSY);
        let start = Instant::now();
        self.rewound.rewind().or_say("rewind")?;
        let took = start.elapsed();
        self.rewound.pause().or_say("pause")?;
        Ok(took)
    }

    /// Its mean over [`FRAMES`].
    fn exchange_frames(&mut self) -> Result<Duration> {
        if self.answering.is_none() {
            self.answering = Some(answering(&self.small)?);
        }
        let (vm, wire) = self.answering.as_ref().ok_or("no guest that answers frames")?;
        vm.resume().or_say("resume")?;
        let start = Instant::now();
        for _ in 0..FRAMES {
            wire.exchange()?;
        }
        let took = start.elapsed();
        vm.pause().or_say("pause")?;
        Ok(took / FRAMES)
    }

    /// A full one, or a diff on the last full one.
    fn snapshot(&self, kind: SnapshotKind) -> Result<Timed> {
        let name = format!("{kind:?}");
        let path = self.store.path_of(&name).or_say("name a snapshot")?;
        let _ = std::fs::remove_dir_all(path);
        self.busy.resume().or_say("resume")?;
        thread::sleep(BUSY);
        let start = Instant::now();
        let options = SnapshotOptions::default().kind(kind);
        let course = self.busy.snapshot_with(&self.store, &name, &options).or_say("take a snapshot")?;
        let whole = start.elapsed();
        self.busy.pause().or_say("pause")?;
        Ok(vec![(", the pause", course.paused), (", whole", whole)])
    }
}

/// A guest that answers frames, and the host's end of its tap, which goes with it.
fn answering(kernel: &Path) -> Result<(Vm, Wire)> {
    let tap = format!("vp{}", std::process::id());
    let mut config = VmConfig::new("");
    config.devices.networks.push(NetConfig::new("eth0", NetBackend::Tap(tap.clone())).offload(false));
    let (vm, _) = boot_with(kernel, "net", config)?;
    Ok((vm, Wire::open(&tap)?))
}

/// Boots a guest, and tells how long it took to its first byte.
fn boot(kernel: &Path, cmdline: &str) -> Result<(Vm, Duration)> {
    boot_with(kernel, cmdline, VmConfig::new(""))
}

fn boot_with(kernel: &Path, cmdline: &str, config: VmConfig) -> Result<(Vm, Duration)> {
    let (first, said) = channel();
    let console = Console::to(FirstByte::new(first));
    let start = Instant::now();
    let builder = Vm::builder().config(config).kernel(kernel).cmdline(cmdline);
    let vm = builder.memory_mib(MIB).console(console).start().or_say("boot a guest")?;
    let at = said.recv_timeout(LIMIT).or_say("hear the guest")?;
    Ok((vm, at - start))
}

/// How long a VM takes to its first byte, which then goes.
fn first_byte<V>(make: impl FnOnce(Console) -> Result<V>) -> Result<Duration> {
    let (first, said) = channel();
    let console = Console::to(FirstByte::new(first));
    let start = Instant::now();
    let vm = make(console)?;
    let at = said.recv_timeout(LIMIT).or_say("hear the guest")?;
    drop(vm);
    Ok(at - start)
}

/// Packed memory.
struct Packed {
    memory: Memory,
    packs: HashMap<&'static str, (Packing, Pack)>,
}

impl Packed {
    fn new(path: PathBuf) -> Result<Self> {
        let memory = Memory::read(path)?;
        let pack = |(name, packing)| Ok((name, (packing, memory.pack(&packing)?)));
        let packs = codecs().into_iter().map(pack).collect::<Result<_>>()?;
        Ok(Self { memory, packs })
    }

    fn act(&self, act: &str, codec: &str) -> Result<Duration> {
        let (packing, pack) = self.packs.get(codec).ok_or_else(|| format!("{codec} is no codec"))?;
        match act {
            "pack" => {
                let start = Instant::now();
                let pack = self.memory.pack(packing)?;
                let took = start.elapsed();
                drop(pack);
                Ok(took)
            }
            "unpack" => unpack(pack),
            _ => self.fault(pack),
        }
    }

    /// The first touch of a chunk: its mean over all chunks that are not zero, in random order.
    fn fault(&self, pack: &Pack) -> Result<Duration> {
        let chunk_len = u64::from(pack.chunk_len());
        let mut order: Vec<_> = self.memory.chunks(chunk_len as usize).map(|(at, _)| at as u64).collect();
        shuffle(&mut order);
        let file = pack.file().try_clone().or_say("open the pack again")?;
        let base = LazyBase::open(file, pack.name()).or_say("open the pack")?;
        let mapped = base.map().or_say("map memory")?;
        let took: Duration = order.iter().map(|chunk| mapped.touch(chunk * chunk_len)).sum();
        Ok(took / order.len() as u32)
    }
}

/// Reads, decodes and verifies every chunk, on one thread.
fn unpack(pack: &Pack) -> Result<Duration> {
    let mut bytes = vec![0; pack.chunk_len() as usize];
    let mut decoder = Decoder::new();
    let start = Instant::now();
    for chunk in 0..pack.geometry().chunks() {
        let len = pack.geometry().range(chunk);
        let into = &mut bytes[..(len.end - len.start) as usize];
        pack.read_unless_zero(chunk, into, &mut decoder).or_say("read a chunk")?;
        black_box(into);
    }
    Ok(start.elapsed())
}
