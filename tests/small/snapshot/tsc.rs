//! The TSC continues from its saved value: in a young guest, in a pooled VM of about its age, and after a
//! rewind.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use volt_tests::{KvmShim, Recorder, Scratch, limited, needs, numbers, small_guest, wait_until};
use volt_vmm::{Pool, RestoreOptions, Snapshot, Store, Vm, VmShape};

/// Returns a vCPU's TSC in a snapshot, in cycles, and its cycles per millisecond.
fn saved(scratch: &Scratch, name: &str, vcpu: usize) -> (u64, u64) {
    let state = fs::read(scratch.path(name).join("state.json")).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    let vcpu = &state["machine"]["vcpus"][vcpu];
    (vcpu["msrs"]["0x10 tsc"].as_u64().unwrap(), vcpu["tsc_khz"].as_u64().unwrap())
}

/// Returns the time of kvmclock minus that of the first vCPU's TSC in a snapshot, in nanoseconds, if its KVM
/// tells both of one moment.
fn clock_before_tsc(scratch: &Scratch, name: &str) -> Option<i128> {
    const HOST_TSC: u64 = 8; // KVM_CLOCK_HOST_TSC
    let state = fs::read(scratch.path(name).join("state.json")).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    let (clock, vcpu) = (&state["machine"]["clock"], &state["machine"]["vcpus"][0]);
    if clock["flags"].as_u64().unwrap() & HOST_TSC == 0 {
        return None;
    }
    let tsc = clock["host_tsc"].as_u64().unwrap().wrapping_add(vcpu["tsc_offset"].as_u64()?);
    let tsc = i128::from(tsc) * 1_000_000 / i128::from(vcpu["tsc_khz"].as_u64().unwrap());
    Some(i128::from(clock["clock"].as_u64().unwrap()) - tsc)
}

/// A guest that prints its TSC on request.
struct Teller {
    vm: Vm,
    said: Recorder,
}

impl Teller {
    fn boot(vcpus: u8) -> Self {
        let said = Recorder::default();
        let builder = Vm::builder().kernel(small_guest()).cmdline("tsc").memory_mib(64).vcpus(vcpus);
        let vm = builder.console(said.console()).start().unwrap();
        said.wait_for("ready");
        Self { vm, said }
    }

    fn restore(snapshot: &Snapshot, pool: Option<&Arc<Pool>>) -> Self {
        let said = Recorder::default();
        let options = RestoreOptions::default().console(said.console()).pool(pool.cloned()).rewindable();
        Self { vm: snapshot.restore_with(options).unwrap(), said }
    }

    /// Returns the TSC in thousands of cycles.
    fn tsc(&self) -> u64 {
        let before = numbers(&self.said.text(), "tsc").len();
        self.vm.type_in(b"?").unwrap();
        wait_until("the guest prints its TSC", || numbers(&self.said.text(), "tsc").len() > before);
        assert!(!self.said.text().contains("WRONG"), "{}", self.said.text());
        numbers(&self.said.text(), "tsc")[before]
    }

    /// Checks that the guest's time since its snapshot is not negative and at most the time since `began`,
    /// plus a tenth and 10 ms.
    fn goes_on_from(&self, (cycles, khz): (u64, u64), began: Instant) {
        let tsc = self.tsc();
        let most = began.elapsed() + began.elapsed() / 10 + Duration::from_millis(10);
        let passed =
            Duration::from_micros((tsc + 1).checked_sub(cycles / 1000).expect("TSC went back") * 1000 / khz);
        assert!(passed <= most, "{passed:?} in {most:?}, from {cycles} at {khz} kHz");
    }
}

fn goes_on(vcpus: u8) {
    let scratch = Scratch::new();
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let original = Teller::boot(vcpus);
    original.vm.snapshot(&store, "young").unwrap();
    drop(original);
    let young = saved(&scratch, "young", 0);
    let age = Duration::from_millis(young.0 / young.1);
    println!("a guest of {age:?}, {vcpus} vCPUs");
    let snapshot = Snapshot::open(&store, "young").unwrap();

    let began = Instant::now();
    let restored = Teller::restore(&snapshot, None);
    restored.goes_on_from(young, began);

    let shape = VmShape::of(snapshot.config()).logs_writes();
    let pool = Arc::new(Pool::new(shape, 1).unwrap());
    // The first VM of the pool is empty, and the others are prepared with the vCPUs' state.
    for _ in 0..3 {
        pool.wait_ready().unwrap();
        std::thread::sleep(age + Duration::from_millis(500));
        let began = Instant::now();
        Teller::restore(&snapshot, Some(&pool)).goes_on_from(young, began);
    }

    // The rewind comes soon after the restore.
    let began = Instant::now();
    restored.vm.rewind().unwrap();
    restored.goes_on_from(young, began);

    // The vCPUs' TSCs agree, although only one vCPU runs.
    let began = Instant::now();
    restored.vm.snapshot(&store, "later").unwrap();
    let most = began.elapsed();
    let (first, khz) = saved(&scratch, "later", 0);
    let (last, _) = saved(&scratch, "later", usize::from(vcpus) - 1);
    let apart =
        Duration::from_micros(last.checked_sub(first).expect("read one after the other") * 1000 / khz);
    assert!(apart <= most, "{apart:?} apart, in {most:?}");
}

/// Linux reads the clock that KVM wrote for the first vCPU on all vCPUs, even before the first one has
/// entered the guest after a restore. Its time would go back if the clock came closer to the TSC.
#[test]
fn clock_keeps_its_distance_from_the_tsc() {
    needs!(kvm, tsc);
    let scratch = Scratch::new();
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let mut teller = Teller::boot(2);
    teller.vm.snapshot(&store, "0").unwrap();
    let Some(mut before) = clock_before_tsc(&scratch, "0") else {
        println!("this KVM does not tell the TSC at the moment of its clock");
        return;
    };
    for round in 1..=5 {
        let snapshot = Snapshot::open(&store, &(round - 1).to_string()).unwrap();
        teller = Teller::restore(&snapshot, None);
        teller.tsc();
        let name = round.to_string();
        teller.vm.snapshot(&store, &name).unwrap();
        let after = clock_before_tsc(&scratch, &name).expect("as before");
        println!("kvmclock is {} ns farther from the TSC", after - before);
        assert!((0..100_000).contains(&(after - before)), "by {} ns", after - before);
        before = after;
    }
}

#[test]
fn tsc_continues_by_offsets() {
    needs!(kvm, tsc);
    [1, 2].into_iter().for_each(goes_on);
}

#[test]
fn tsc_continues_without_offsets() {
    needs!(kvm, tsc);
    let on_shim = || {
        KvmShim::new().without_tsc_offset().enter();
        [1, 2].into_iter().for_each(goes_on);
    };
    std::thread::scope(|scope| {
        let on_shim = scope.spawn(on_shim);
        limited("the guests without offsets go on", || on_shim.join()).unwrap();
    });
}

#[test]
fn vcpus_keep_equal_tsc_offsets() {
    needs!(kvm, tsc);
    let scratch = Scratch::new();
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let offsets = |name: &str| {
        let state: Value =
            serde_json::from_slice(&fs::read(scratch.path(name).join("state.json")).unwrap()).unwrap();
        [0, 1, 2].map(|vcpu| state["machine"]["vcpus"][vcpu]["tsc_offset"].as_u64())
    };
    Teller::boot(3).vm.snapshot(&store, "first").unwrap();
    let snapshot = Snapshot::open(&store, "first").unwrap();
    Teller::restore(&snapshot, None).vm.snapshot(&store, "second").unwrap();
    for offsets in [offsets("first"), offsets("second")] {
        assert!(offsets[0] == offsets[1] && offsets[1] == offsets[2], "{offsets:?}");
    }
}
