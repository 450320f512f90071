//! Linux reseeds its random numbers in every clone, because the generation id has changed. Without the device
//! clones draw the same numbers.

use std::collections::BTreeSet;

use serde_json::json;
use volt_tests::{Boot, Child, Guest, Snapshot, clones, needs, wait_until};

/// Numbers since the snapshot that a test compares.
const COMPARED: u64 = 500;

/// The lines of random numbers in a guest's output after its `reseeds`th reseed, once there are all of them.
fn entropy(what: &str, output: impl Fn() -> String, reseeds: usize) -> Vec<String> {
    let lines = || -> Option<Vec<String>> {
        let text = output().replace('\r', "");
        let whole = &text[..=text.rfind('\n')?];
        let after = whole.split("reseeded\n").nth(reseeds)?;
        let values = ["getrandom ", "urandom "]
            .map(|start| after.lines().find_map(|line| line.strip_prefix(start)).map(str::to_owned));
        values.into_iter().collect()
    };
    wait_until(&format!("{what} has reseeded"), || lines().is_some());
    lines().expect("the lines came")
}

/// Random numbers of all clones, of which none may repeat.
#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    fn add(&mut self, what: &str, numbers: Vec<String>) {
        for number in numbers {
            assert_eq!(number.len(), 64, "{what}: {number}");
            assert!(self.0.insert(number.clone()), "{what}: {number} repeats");
        }
    }
}

fn watching(vcpus: u32) -> Guest {
    let mut guest = Boot::linux().vcpus(vcpus).start();
    guest.wait_until_ready();
    guest.order("watch-reseeds");
    guest
}

/// Restores, forks, rewinds and loads into a prewarmed VM, and checks all random numbers.
fn never_repeats(vcpus: u32) {
    let guest = watching(vcpus);
    let (snapshot, mut seen) = (guest.snapshot(), Seen::default());
    for clone in 0..clones() {
        let restored = snapshot.restore();
        seen.add("a restored clone", entropy("a restored clone", || restored.output(), 1));
        if clone == 0 {
            for rewinds in 1..=clones() {
                assert_eq!(restored.ask("PUT", "/v1/vm/rewind", "").0, 200);
                let numbers = entropy("a rewound clone", || restored.output(), 1 + rewinds);
                seen.add("a rewound clone", numbers);
            }
        }
    }
    let names: Vec<_> = (0..clones()).map(|child| format!("child-{child}")).collect();
    for name in &names {
        let child = [(name.as_str(), json!({}))];
        let children = Child::fork(guest.socket(), guest.scratch().directory(), &child, false);
        seen.add("a fork's child", entropy("a fork's child", || children[0].output(), 1));
    }
    for _ in 0..clones() {
        let pooled = Guest::waiting_with(&["--prewarm", &format!("256M,vcpus={vcpus}")]);
        let request = format!(r#"{{"snapshot_path":{:?},"resume_vm":true}}"#, snapshot.directory());
        assert_eq!(pooled.ask("PUT", "/snapshot/load", &request).0, 204);
        seen.add("a pooled clone", entropy("a pooled clone", || pooled.output(), 1));
    }
    let (count, each) = (seen.0.len(), clones());
    assert_eq!(count, each * 4 * 2);
    println!(
        "{vcpus} vCPUs: {count} random numbers of {each} clones each by restore, rewind, fork and pool, \
         none twice"
    );
    assert!(!guest.output().contains("reseeded"), "the parent reseeded: {}", guest.output());
}

#[test]
fn random_numbers_of_clones_with_one_vcpu_never_repeat() {
    needs!(linux);
    never_repeats(1);
}

#[test]
fn random_numbers_of_clones_with_four_vcpus_never_repeat() {
    needs!(linux);
    never_repeats(4);
}

/// A snapshot of a guest that draws numbers on its last processor without a pause.
fn drawing(vcpus: u32, vmgenid: &str) -> Snapshot {
    let mut guest = Boot::linux().vcpus(vcpus).device(["--vmgenid", vmgenid]).start();
    guest.wait_until_ready();
    guest.order("watch-reseeds");
    guest.order("draw");
    guest.order("echo drawing");
    guest.snapshot()
}

/// The first numbers that a clone drew since its snapshot, with their TSCs, and the last one.
struct Drawn {
    first: Vec<(u64, String)>,
    last: String,
}

impl Drawn {
    /// Restores a clone and lets it draw until it has reseeded, if it has the device.
    fn by_clone(snapshot: &Snapshot, from: u64, has_device: bool) -> Self {
        let mut clone = snapshot.restore();
        if has_device {
            clone.wait_for("reseeded").wait_for("urandom ");
        } else {
            // The first order may come before the thread draws at all.
            clone.order("sleep 500");
            clone.wait_for("slept 500");
        }
        let answer = clone.order(&format!("drawn {from} {COMPARED}"));
        let first = answer.iter().filter_map(|line| line.strip_prefix("drawn ")?.split_once(' '));
        let first = first.map(|(tsc, number)| (tsc.parse().expect("a TSC"), number.to_owned()));
        let last = answer.iter().find_map(|line| line.strip_prefix("last "));
        Self { first: first.collect(), last: last.expect("a last number").to_owned() }
    }

    fn has(&self, number: &str) -> bool {
        self.last == number || self.first.iter().any(|(_, drawn)| drawn == number)
    }
}

/// Pairs of clones of which one at least draws equal numbers without the device.
const PAIRS: u32 = 5;

/// The numbers of two clones that drew from one snapshot on.
struct Pair {
    what: String,
    from: u64,
    khz: u64,
    clones: [Drawn; 2],
}

impl Pair {
    fn of(vcpus: u32, vmgenid: &str) -> Self {
        let snapshot = drawing(vcpus, vmgenid);
        let state = snapshot.state();
        let first = &state["machine"]["vcpus"][0];
        let from = first["msrs"]["0x10 tsc"].as_u64().expect("a TSC");
        let khz = first["tsc_khz"].as_u64().expect("a rate");
        let clones = [(); 2].map(|()| Drawn::by_clone(&snapshot, from, vmgenid == "on"));
        Self { what: format!("vmgenid {vmgenid}, {vcpus} vCPUs"), from, khz, clones }
    }

    /// Prints how long both drew equal numbers, in us of the guest. Returns the count of these numbers.
    fn window(&self) -> usize {
        let Self { what, from, khz, clones: [one, other] } = self;
        let equal: Vec<_> = one.first.iter().filter(|(_, number)| other.has(number)).collect();
        let time = equal.last().map_or(0, |(tsc, _)| (tsc - from) * 1000 / khz);
        let (count, drawn) = (equal.len(), one.first.len());
        println!("{what}: two clones drew {count} equal numbers of 8 bytes in {time} us, {drawn} compared");
        count
    }
}

#[test]
fn clones_without_the_device_draw_equal_numbers() {
    needs!(linux);
    for vcpus in [1, 4] {
        // An interrupt may come to one of two clones first, and reseed it.
        let found = (0..PAIRS).any(|_| Pair::of(vcpus, "off").window() > 0);
        assert!(found, "{vcpus} vCPUs: the clones of {PAIRS} pairs differ from the start");
    }
}

#[test]
fn clones_with_the_device_draw_equal_numbers_only_until_they_reseed() {
    needs!(linux);
    for vcpus in [1, 4] {
        let pair = Pair::of(vcpus, "on");
        pair.window();
        let [one, other] = &pair.clones;
        assert!(!other.has(&one.last) && !one.has(&other.last), "{}: {}", pair.what, one.last);
    }
}
