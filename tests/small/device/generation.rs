//! A small guest reads its generation id and VMClock, and prints both after each notification.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use volt_tests::{Recorder, Scratch, needs, small_guest, wait_until};
use volt_vmm::snapshot::merge;
use volt_vmm::{
    Compression, IrqchipKind, Packing, Pool, Progress, RestoreOptions, Snapshot, SnapshotOptions, Store,
    Unpack, Vm, VmShape,
};

/// Address of the generation id, which lies in the same place of the memory file.
const GENERATION_ID: u64 = 0xf_e000;

/// A line of the guest: the id's two words, VMClock's marker and counter, and its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Generation {
    words: [String; 4],
    sequence: u64,
}

/// The generations that a guest has printed.
fn printed(said: &Recorder) -> Vec<Generation> {
    let text = said.text();
    assert!(!text.contains("WRONG"), "{text}");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().filter_map(|line| line.strip_prefix("generation ")).map(parsed).collect()
}

fn parsed(line: &str) -> Generation {
    let mut words = line.split(' ');
    let found = std::array::from_fn(|_| words.next().expect("four words").to_owned());
    Generation { words: found, sequence: words.next().expect("a sequence").parse().expect("a number") }
}

/// Waits for the guest's next generation.
fn next(said: &Recorder, seen: usize) -> Generation {
    wait_until("the guest is notified", || printed(said).len() > seen);
    printed(said).swap_remove(seen)
}

/// All values of all generations so far, of which none may repeat.
#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    fn add(&mut self, generation: &Generation) {
        for word in &generation.words {
            assert!(self.0.insert(word.clone()), "{word} repeats");
        }
    }
}

/// A booted guest, its output and its first generation.
struct Booted {
    scratch: Scratch,
    vm: Vm,
    said: Recorder,
    first: Generation,
}

impl Booted {
    fn with(irqchip: IrqchipKind) -> Self {
        let (scratch, said) = (Scratch::new(), Recorder::default());
        let builder = Vm::builder().kernel(small_guest()).cmdline("generation").memory_mib(16);
        let vm = builder.irqchip(irqchip).console(said.console()).start().unwrap();
        said.wait_for("ready\n");
        let first = next(&said, 0);
        Self { scratch, vm, said, first }
    }

    fn new() -> Self {
        Self::with(IrqchipKind::default())
    }

    fn store(&self) -> Store {
        Store::open(self.scratch.directory().to_str().unwrap()).unwrap()
    }

    fn snapshot(&self, name: &str, options: &SnapshotOptions) -> Snapshot {
        self.vm.snapshot_with(&self.store(), name, options).unwrap();
        Snapshot::open(&self.store(), name).unwrap()
    }
}

fn restored(snapshot: &Snapshot, options: RestoreOptions) -> (Vm, Recorder) {
    let said = Recorder::default();
    let vm = snapshot.restore_with(options.console(said.console())).unwrap();
    (vm, said)
}

/// The generation id in a raw memory file, as the guest prints it.
fn id_in(memory: &Path) -> [String; 2] {
    let (mut bytes, file) = ([0; 16], File::open(memory).unwrap());
    file.read_exact_at(&mut bytes, GENERATION_ID).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    [0, 8].map(|at| format!("{:#018x}", word(at)))
}

#[test]
fn thousand_restores_never_repeat_a_generation() {
    needs!(kvm);
    for (irqchip, restores) in [(IrqchipKind::Split, 1000), (IrqchipKind::Kernel, 20)] {
        let booted = Booted::with(irqchip);
        let warm = booted.snapshot("warm", &SnapshotOptions::default());
        let mut seen = Seen::default();
        seen.add(&booted.first);
        for _ in 0..restores {
            let (_vm, said) = restored(&warm, RestoreOptions::default());
            let generation = next(&said, 0);
            seen.add(&generation);
            assert_eq!(generation.sequence, booted.first.sequence + 2);
        }
        assert_eq!(seen.0.len(), 4 * (restores + 1));
    }
}

#[test]
fn forks_rewinds_and_pooled_vms_have_their_own_generations() {
    needs!(kvm);
    let booted = Booted::new();
    let mut seen = Seen::default();
    seen.add(&booted.first);
    let fork = |vm: &Vm, count: usize| {
        let said: Vec<_> = (0..count).map(|_| Recorder::default()).collect();
        let options = said.iter().map(|said| RestoreOptions::default().console(said.console()));
        let children = vm.fork(options).unwrap();
        (children, said)
    };
    let (children, said) = fork(&booted.vm, 4);
    said.iter().for_each(|said| seen.add(&next(said, 0)));
    let (_grandchildren, said) = fork(&children[0], 4);
    said.iter().for_each(|said| seen.add(&next(said, 0)));

    let warm = booted.snapshot("warm", &SnapshotOptions::default());
    let (vm, said) = restored(&warm, RestoreOptions::default());
    seen.add(&next(&said, 0));
    for rewinds in 1..20 {
        vm.rewind().unwrap();
        seen.add(&next(&said, rewinds));
    }
    let pool = Arc::new(Pool::new(VmShape::of(warm.config()), 2).unwrap());
    for _ in 0..10 {
        pool.wait_ready().unwrap();
        let (_vm, said) = restored(&warm, RestoreOptions::default().pool(Arc::clone(&pool)));
        seen.add(&next(&said, 0));
    }
    assert_eq!(printed(&booted.said), [booted.first], "the parent has another generation");
}

#[test]
fn every_kind_of_memory_gets_a_new_generation() {
    needs!(kvm, page_faults);
    let booted = Booted::new();
    let mut seen = Seen::default();
    seen.add(&booted.first);
    booted.snapshot("warm", &SnapshotOptions::default());
    let diff = booted.snapshot("diff", &SnapshotOptions::default().diff());
    let packing = Some(Packing::new(Compression::Lz4));
    let packed = booted.snapshot("packed", &SnapshotOptions::default().packing(packing));
    for (snapshot, unpack) in [(&diff, Unpack::AtOnce), (&packed, Unpack::AtOnce), (&packed, Unpack::OnTouch)]
    {
        for _ in 0..3 {
            let (vm, said) = restored(snapshot, RestoreOptions::default().unpack(unpack.clone()));
            seen.add(&next(&said, 0));
            vm.rewind().unwrap();
            seen.add(&next(&said, 1));
        }
    }
}

#[test]
fn snapshot_has_the_generation_that_its_guest_reads() {
    needs!(kvm);
    let booted = Booted::new();
    let warm = booted.snapshot("warm", &SnapshotOptions::default());
    let file = |name: &str| booted.scratch.path(name).join("memory.snap");
    assert_eq!(id_in(&file("warm")), booted.first.words[..2]);
    // The guest never writes to the page, so a diff finds it through this process's own writes.
    let (vm, said) = restored(&warm, RestoreOptions::default());
    for (generations, name) in ["restored", "rewound", "again"].into_iter().enumerate() {
        if generations > 0 {
            vm.rewind().unwrap();
        }
        let generation = next(&said, generations);
        vm.snapshot_with(&booted.store(), name, &SnapshotOptions::default().diff()).unwrap();
        let whole = format!("{name}-whole");
        let diff = Snapshot::open(&booted.store(), name).unwrap();
        merge(&diff, &booted.store(), &whole, &Progress::default()).unwrap();
        assert_eq!(id_in(&file(&whole)), generation.words[..2], "{name}");
    }
}

#[test]
fn snapshot_leaves_the_guests_generation_as_it_was() {
    needs!(kvm);
    let booted = Booted::new();
    for name in ["one", "two"] {
        booted.snapshot(name, &SnapshotOptions::default());
        let memory = booted.scratch.path(name).join("memory.snap");
        assert_eq!(id_in(&memory), booted.first.words[..2], "{name}");
    }
    assert_eq!(printed(&booted.said).len(), 1);
}

#[test]
fn guest_without_the_device_finds_none_and_its_memory_stays() {
    needs!(kvm);
    let (scratch, said) = (Scratch::new(), Recorder::default());
    let builder = Vm::builder().kernel(small_guest()).cmdline("generation").memory_mib(16).vmgenid(false);
    let vm = builder.console(said.console()).start().unwrap();
    said.wait_for("no generation device\n");
    let store = Store::open(scratch.directory().to_str().unwrap()).unwrap();
    vm.snapshot(&store, "warm").unwrap();
    let zeros = ["0x0000000000000000"; 2];
    assert_eq!(id_in(&scratch.path("warm").join("memory.snap")), zeros);
    let warm = Snapshot::open(&store, "warm").unwrap();
    assert!(!warm.config().vmgenid);
    let (vm, _) = restored(&warm, RestoreOptions::default());
    vm.snapshot(&store, "clone").unwrap();
    assert_eq!(id_in(&scratch.path("clone").join("memory.snap")), zeros);
}
