//! A busy Linux, which checks and changes its memory in a loop, is snapshotted, forked and rewound while it
//! runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use volt_tests::{
    Boot, Guest, Recorder, Scratch, Snapshot as Taken, generations, limited, needs, numbers, wait_until,
};
use volt_vmm::{Progress, RestoreOptions, Snapshot, SnapshotKind, SnapshotOptions, Store, Vm, snapshot};

/// MiB that the guest steps through, 2 at a time.
const MIB: u64 = 8;

/// A Linux in this process.
struct Linux {
    vm: Vm,
    said: Recorder,
}

impl Linux {
    /// Boots a Linux that counts.
    fn counting() -> Self {
        let file = |variable| PathBuf::from(std::env::var_os(variable).unwrap());
        let said = Recorder::default();
        let builder = Vm::builder().kernel(file("VOLT_KERNEL")).initrd(file("VOLT_INITRD"));
        let vm = builder.memory_mib(96).console(said.console()).start().unwrap();
        said.wait_for("volt-init: ready");
        let linux = Self { vm, said };
        linux.order(&format!("fill {MIB}"));
        linux.order("count");
        linux.counts_on(3);
        linux
    }

    fn of(snapshot: &Snapshot) -> Self {
        let said = Recorder::default();
        let options = RestoreOptions::default().console(said.console()).rewindable();
        Self { vm: snapshot.restore_with(options).unwrap(), said }
    }

    /// Gives an order to the guest's init and waits until it is done. Returns the output.
    fn order(&self, order: &str) -> String {
        let from = self.said.text().len();
        let name = order.split(' ').next().unwrap();
        let (done, failed) = (format!("ok {name}\n"), format!("error {name}"));
        self.vm.type_in(format!("{order}\n").as_bytes()).unwrap();
        wait_until(order, || self.said.text()[from..].replace('\r', "").contains(&done));
        let answer = self.said.text()[from..].replace('\r', "");
        assert!(!answer.contains(&failed), "{answer}");
        answer
    }

    /// Waits for `by` more numbers. Returns the first of them.
    fn counts_on(&self, by: usize) -> u64 {
        let from = self.said.text().rfind('\n').map_or(0, |at| at + 1);
        let numbers = || numbers(&self.said.text()[from..].replace('\r', ""), "count");
        wait_until("the guest counts on", || numbers().len() >= by);
        numbers()[0]
    }

    /// Checks that the guest finds no corrupt memory, neither in its steps since the restore nor in a full
    /// check.
    fn is_whole(&self) {
        self.counts_on(MIB as usize / 2 + 1);
        self.order("check");
        assert!(!self.said.text().contains("corrupt"), "{}", self.said.text());
    }
}

fn store(scratch: &Scratch) -> Store {
    Store::open(&format!("file://{}", scratch.directory().display())).unwrap()
}

#[test]
fn busy_guest_survives_many_diffs_in_a_row() {
    needs!(linux);
    let scratch = Scratch::new();
    let store = store(&scratch);
    let linux = Linux::counting();
    let take = |kind, name: &str| {
        let options = SnapshotOptions::default().kind(kind);
        linux.vm.snapshot_with(&store, name, &options).unwrap();
    };
    take(SnapshotKind::Full, "base");
    for number in 1..=3 * generations() {
        take(SnapshotKind::Diff, "diff");
        if number % 5 == 0 && number <= 20 {
            Linux::of(&Snapshot::open(&store, "diff").unwrap()).is_whole();
        }
        fs::remove_dir_all(scratch.path("diff")).unwrap();
    }
    linux.is_whole();
    linux.vm.pause().unwrap();
    take(SnapshotKind::Diff, "last");
    take(SnapshotKind::Full, "full");
    snapshot::merge(&Snapshot::open(&store, "last").unwrap(), &store, "merged", &Progress::default())
        .unwrap();
    let memory = |name| fs::read(scratch.path(name).join("memory.snap")).unwrap();
    assert!(memory("merged") == memory("full"), "byte for byte");
}

#[test]
fn eight_children_of_a_busy_guest_run_independently() {
    needs!(linux);
    let parent = Linux::counting();
    let fork = |parent: &Linux, count: usize| {
        let before = parent.counts_on(1);
        let here = parent.vm.snapshot_in_memory().unwrap();
        let children: Vec<_> = (0..count).map(|_| Linux::of(&here)).collect();
        for (number, child) in children.iter().enumerate() {
            assert!(child.counts_on(1) > before, "a child went back");
            child.order(&format!("write /own {number}"));
        }
        for (number, child) in children.iter().enumerate() {
            child.is_whole();
            assert!(child.order("read /own").contains(&format!("{number}\n")), "two children share a file");
        }
        children
    };
    let mut children = fork(&parent, 8);
    parent.is_whole();
    drop(parent);
    let child = children.swap_remove(3);
    drop(children);
    for grandchild in fork(&child, 2) {
        grandchild.order("poweroff");
        limited("the grandchild ends", || grandchild.vm.wait()).unwrap();
    }
    child.is_whole();
}

#[test]
fn busy_guest_is_rewound_many_times() {
    needs!(linux);
    let scratch = Scratch::new();
    let parent = Linux::counting();
    parent.vm.snapshot(&store(&scratch), "warm").unwrap();
    drop(parent);
    let linux = Linux::of(&Snapshot::open(&store(&scratch), "warm").unwrap());
    let first = linux.counts_on(1);
    for round in 0..50 {
        linux.order(&format!("write /round {round}"));
        linux.vm.rewind().unwrap();
        // Output from before the rewind may come first.
        wait_until("the guest counts from the snapshot", || linux.counts_on(1).abs_diff(first) <= 2);
    }
    linux.is_whole();
    linux.vm.rewind().unwrap();
    linux.is_whole();
    linux.order("poweroff");
    limited("the VM ends", || linux.vm.wait()).unwrap();
}

#[test]
fn trimmed_snapshot_lacks_only_the_page_cache() {
    needs!(linux);
    // Far more than the trim leaves free (29 MiB), which may all be pages that the cache has used.
    const KIB: u64 = 96 << 10;
    let scratch = Scratch::new();
    let image = scratch.fresh("image");
    fs::File::create(&image).unwrap().set_len(KIB << 10).unwrap();
    let disk = format!("path={},layer={}", image.display(), scratch.fresh("layer").display());
    let boot = Boot::linux().memory("256M").device(["--balloon", "statistics=1"]).device(["--disk", &disk]);
    let mut guest = boot.start();
    guest.wait_until_ready();
    guest.order("fill 16");
    guest.order(&format!("put /dev/vda {KIB} 7"));
    let told = |guest: &Guest| guest.ask("GET", "/balloon/statistics", "").1.contains("available_memory");
    wait_until("the guest reports its memory", || told(&guest));
    let stored = |taken: &Taken| fs::metadata(taken.memory_path()).unwrap().blocks() / 2;
    let all = stored(&guest.snapshot());
    let trimmed = guest.snapshot_as(&["--trim"]);
    // The trim leaves the guest some memory to work with.
    assert!(stored(&trimmed) + KIB / 2 < all, "{} KiB trimmed, {all} without", stored(&trimmed));
    // The guest gets its memory back and can read its disk again.
    let is_empty =
        |guest: &Guest| guest.ask("GET", "/balloon/statistics", "").1.contains(r#""actual_pages":0,"#);
    wait_until("the guest's balloon is empty", || is_empty(&guest));
    guest.order("fill 128");
    guest.order("check");
    drop(guest);
    let mut clone = trimmed.restore();
    clone.order("check");
    wait_until("the clone's balloon is empty", || is_empty(&clone));
    clone.order("fill 128");
    clone.order(&format!("verify /dev/vda {KIB} 7"));
    clone.order("check");
    assert!(!clone.output().contains("corrupt"), "{}", clone.output());
}
