//! Linux reseeds its random numbers in every clone, because the generation id has changed. Without the device
//! clones draw the same numbers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use volt_tests::{Boot, Child, Guest, Snapshot, clones, needs, wait_until};

/// Numbers of each processor that a test compares, and their distance.
const COMPARED: u64 = 400;
const STEP: u64 = 16;

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
    assert_eq!(seen.0.len(), clones() * 4 * 2);
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

/// A snapshot of a guest that draws numbers on all processors without a pause.
fn drawing(vcpus: u32, vmgenid: &str) -> Snapshot {
    let mut guest = Boot::linux().vcpus(vcpus).device(["--vmgenid", vmgenid]).start();
    guest.wait_until_ready();
    guest.order("watch-reseeds");
    guest.order("draw");
    guest.order("echo drawing");
    guest.snapshot()
}

/// A number that a processor drew, and the TSC before.
struct Draw {
    tsc: u64,
    index: u64,
}

/// Some of the numbers that a clone drew since its snapshot, by processor and number, and the last ones.
struct Drawn {
    some: BTreeMap<(u64, String), Draw>,
    last: BTreeSet<String>,
}

impl Drawn {
    /// Restores a clone and lets it draw until it has reseeded, if it has the device.
    fn by_clone(snapshot: &Snapshot, from: u64, has_device: bool) -> Self {
        let mut clone = snapshot.restore();
        if has_device {
            clone.wait_for("reseeded").wait_for("urandom ");
        }
        let answer = clone.order(&format!("drawn {from} {STEP} {COMPARED}"));
        let words = |start| {
            let lines = answer.iter().filter_map(move |line| line.strip_prefix(start));
            lines.map(|line| line.split(' ').collect::<Vec<_>>())
        };
        let some = words("drawn ").map(|words| {
            let [processor, index, tsc] = [0, 1, 2].map(|word| words[word].parse().expect("a number"));
            ((processor, words[3].to_owned()), Draw { tsc, index })
        });
        Self { some: some.collect(), last: words("last ").map(|words| words[1].to_owned()).collect() }
    }
}

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

    /// Prints the longest time in which both drew equal numbers, in us of the guest, and returns the bytes of
    /// these numbers on one processor.
    fn window(&self) -> u64 {
        let Self { what, from, khz, clones: [one, other] } = self;
        let repeated = one.some.iter().filter(|(number, _)| other.some.contains_key(number));
        let (time, bytes) = repeated.fold((0, 0), |(time, bytes), (_, draw)| {
            (time.max((draw.tsc - from) * 1000 / khz), bytes.max((draw.index + 1) * 8))
        });
        println!("{what}: two clones drew equal numbers for {time} us, {bytes} bytes");
        bytes
    }
}

#[test]
fn clones_without_the_device_draw_equal_numbers() {
    needs!(linux);
    for vcpus in [1, 4] {
        let pair = Pair::of(vcpus, "off");
        assert!(pair.window() > 0, "{}: the clones differ from the start", pair.what);
    }
}

#[test]
fn clones_with_the_device_draw_equal_numbers_only_until_they_reseed() {
    needs!(linux);
    for vcpus in [1, 4] {
        let pair = Pair::of(vcpus, "on");
        pair.window();
        let [one, other] = &pair.clones;
        assert_eq!(one.last.len(), vcpus as usize);
        assert!(one.last.is_disjoint(&other.last), "{}: {:?}", pair.what, one.last);
        let drawn = |number: &String| other.some.keys().any(|(_, drawn)| drawn == number);
        assert!(!one.last.iter().any(drawn), "{}: {:?}", pair.what, one.last);
    }
}
