//! Restores on a model of Linux 6.1's handling of a written TSC (`kvm_synchronize_tsc`), with and without
//! offsets, for guests and VMs of different ages.

use std::cell::Cell;

use super::*;

const KHZ: u32 = 2_000_000;
const SECOND: u64 = KHZ as u64 * 1000;
/// Cycles that pass with each call.
const STEP: u64 = 3000;
/// Largest accepted error of a counter: the cycles of a few calls.
const FEW: i64 = 20 * STEP.cast_signed();

/// The clock of a VM in KVM.
struct ModelVm {
    /// The host's TSC at the guest's rate.
    now: Cell<u64>,
    last_write: Cell<u64>,
    last_write_at: Cell<u64>,
    /// Offset of the present generation, which a synchronised vCPU gets.
    generation: Cell<u64>,
    kvm: ModelKvm,
}

/// The abilities of a KVM, and the rate of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelKvm {
    /// Offsets, at the host's rate.
    Offsets,
    /// Offsets, at a rate that differs from the host's.
    Scaled,
    /// No offsets (Linux before 5.16), at the host's rate.
    Writes,
    /// No offsets, at a rate that differs from the host's.
    ScaledWrites,
}
use ModelKvm::{Offsets, Scaled, ScaledWrites, Writes};

const ALL_KVMS: [ModelKvm; 4] = [Offsets, Scaled, Writes, ScaledWrites];

struct ModelVcpu<'a> {
    vm: &'a ModelVm,
    offset: Cell<u64>,
}

impl ModelVm {
    fn new(kvm: ModelKvm) -> Self {
        Self {
            now: Cell::new(1 << 50),
            last_write: Cell::new(0),
            last_write_at: Cell::new(1 << 50),
            generation: Cell::new((1_u64 << 50).wrapping_neg()),
            kvm,
        }
    }

    fn vcpus(&self, count: usize) -> Vec<ModelVcpu<'_>> {
        (0..count).map(|_| ModelVcpu { vm: self, offset: Cell::new(self.generation.get()) }).collect()
    }

    fn passes(&self, cycles: u64) -> u64 {
        self.now.set(self.now.get() + cycles);
        self.now.get()
    }
}

impl Counter for &ModelVcpu<'_> {
    fn host(&self) -> Option<u64> {
        matches!(self.vm.kvm, Offsets | Writes).then(|| self.vm.passes(STEP))
    }

    fn offset(&self) -> Result<Option<u64>> {
        self.vm.passes(STEP);
        Ok(matches!(self.vm.kvm, Offsets | Scaled).then(|| self.offset.get()))
    }

    fn set_offset(&self, offset: u64) -> Result<bool> {
        let now = self.vm.passes(STEP);
        if matches!(self.vm.kvm, Writes | ScaledWrites) {
            return Ok(false);
        }
        self.offset.set(offset);
        self.vm.last_write.set(now.wrapping_add(offset));
        self.vm.last_write_at.set(now);
        Ok(true)
    }

    fn read(&self) -> Result<u64> {
        Ok(self.vm.passes(STEP).wrapping_add(self.offset.get()))
    }

    fn write(&self, value: u64) -> Result<()> {
        let ModelVm { last_write, last_write_at, generation, .. } = self.vm;
        let now = self.vm.passes(STEP);
        let expected = last_write.get().wrapping_add(now - last_write_at.get());
        let synchronises =
            value == 0 || value < expected.wrapping_add(SECOND) && value.wrapping_add(SECOND) > expected;
        if !synchronises {
            generation.set(value.wrapping_sub(now));
        }
        self.offset.set(generation.get());
        last_write.set(value);
        last_write_at.set(now);
        Ok(())
    }
}

/// Restores into a VM of this age. Returns the error of each counter in cycles.
fn errors(vm: &ModelVm, age: u64, saved: &[SavedTsc], distances: &[u64]) -> Vec<i64> {
    let vcpus = vm.vcpus(saved.len());
    vm.passes(age);
    let began = vm.now.get();
    restore(&vcpus.iter().zip(saved.iter().copied()).collect::<Vec<_>>(), None).unwrap();
    let since = vm.now.get() - began;
    let reads = |vcpu: &ModelVcpu<'_>| vm.now.get().wrapping_add(vcpu.offset.get());
    let expected = |distance: &u64| saved[0].value.wrapping_add(*distance).wrapping_add(since);
    let off = |(vcpu, distance)| reads(vcpu).wrapping_sub(expected(distance)).cast_signed();
    vcpus.iter().zip(distances).map(off).collect()
}

/// Saved counters of vCPUs that were read one after the other.
fn saved(value: u64, distances: &[u64], tells_offsets: bool) -> Vec<SavedTsc> {
    let of = |(id, distance): (usize, &u64)| SavedTsc {
        value: value.wrapping_add(*distance).wrapping_add(id as u64 * 50_000),
        offset: tells_offsets.then(|| 0xdead_0000_u64.wrapping_neg().wrapping_add(*distance)),
        khz: KHZ,
    };
    distances.iter().enumerate().map(of).collect()
}

#[test]
fn tsc_continues_from_its_saved_value_in_a_vm_of_any_age() {
    for kvm in ALL_KVMS {
        for value in [1, SECOND / 3, SECOND, 500 * SECOND, 1 << 62, u64::MAX - 5] {
            for age in [0, SECOND / 5, SECOND / 2, SECOND * 9 / 10, 500 * SECOND] {
                for vcpus in [1, 2, 5] {
                    let distances = vec![0; vcpus];
                    let saved = saved(value, &distances, true);
                    let vm = ModelVm::new(kvm);
                    let off = errors(&vm, age, &saved, &distances);
                    let is_right = off[0].abs() <= FEW && off.iter().all(|each| *each == off[0]);
                    assert!(is_right, "{off:?}: {value} {age} {vcpus} {kvm:?}");
                }
            }
        }
    }
}

#[test]
fn model_drops_the_tsc_of_a_young_guest_without_a_distant_write() {
    let vm = ModelVm::new(Writes);
    let vcpus = vm.vcpus(1);
    vm.passes(SECOND / 2);
    (&vcpus[0]).write(SECOND / 4).unwrap();
    assert!((&vcpus[0]).read().unwrap() > SECOND / 2);
}

#[test]
fn distances_between_vcpus_are_kept() {
    let ms = SECOND / 1000;
    for distances in [vec![0, 7 * ms, 0, 7 * ms], vec![0, ms.wrapping_neg(), 3 * SECOND, 0]] {
        for kvm in ALL_KVMS {
            let vm = ModelVm::new(kvm);
            let off = errors(&vm, SECOND / 2, &saved(SECOND / 3, &distances, true), &distances);
            assert!(off.iter().all(|each| each.abs() <= FEW), "{off:?} {kvm:?}");
            let off_of_equals = |distance: u64| {
                let mut of =
                    off.iter().zip(&distances).filter(move |(_, d)| **d == distance).map(|(o, _)| *o);
                let first = of.next().unwrap();
                of.all(|each| each == first)
            };
            assert!(distances.iter().all(|distance| off_of_equals(*distance)), "{off:?} {kvm:?}");
        }
    }
}

#[test]
fn snapshot_without_offsets_keeps_equal_tscs_equal() {
    for kvm in ALL_KVMS {
        let vm = ModelVm::new(kvm);
        let off = errors(&vm, SECOND / 2, &saved(SECOND / 3, &[0, 0, 0], false), &[0, 0, 0]);
        assert!(off[0].abs() <= FEW && off.iter().all(|each| *each == off[0]), "{off:?}");
        let apart = [0, 5 * SECOND];
        let off = errors(&ModelVm::new(kvm), SECOND, &saved(SECOND, &apart, false), &apart);
        assert!(off[0].abs() <= FEW && (off[1] - 50_000).abs() <= FEW, "{off:?}");
    }
}

#[test]
fn rewind_sets_the_tscs_back() {
    for kvm in ALL_KVMS {
        let vm = ModelVm::new(kvm);
        let vcpus = vm.vcpus(2);
        let saved = saved(100 * SECOND, &[0, 0], true);
        let restore = || restore(&vcpus.iter().zip(saved.iter().copied()).collect::<Vec<_>>(), None).unwrap();
        restore();
        vm.passes(SECOND / 2);
        restore();
        let read = (&vcpus[1]).read().unwrap();
        assert!(read - 100 * SECOND < FEW.cast_unsigned(), "{read}");
        assert_eq!(vcpus[0].offset, vcpus[1].offset);
    }
}

#[test]
fn skipped_time_advances_a_counter_by_its_rate() {
    let saved = SavedTsc { value: 5, offset: Some(7), khz: 2_500_000 };
    let later = saved.later(Duration::from_secs(3));
    assert_eq!((later.value, later.offset, later.khz), (7_500_000_005, Some(7), 2_500_000));
    let year = saved.later(Duration::from_secs(365 * 24 * 3600)).value;
    assert_eq!(year, 365 * 24 * 3600 * 2_500_000_000 + 5);
}

#[test]
fn counter_at_the_moment_of_the_clock_continues_from_there() {
    let vm = ModelVm::new(Offsets);
    let vcpus = vm.vcpus(2);
    let saved = SavedTsc { value: 5 * SECOND, offset: Some((7 * SECOND).wrapping_neg()), khz: KHZ };
    // The clock was saved half a second after the counter, and has been set a second ago.
    let at_clock = saved.at(12 * SECOND + SECOND / 2).unwrap();
    assert_eq!(at_clock.value, 5 * SECOND + SECOND / 2);
    let set = vm.now.get() - SECOND;
    restore(&vcpus.iter().map(|vcpu| (vcpu, at_clock)).collect::<Vec<_>>(), Some(set)).unwrap();
    for vcpu in &vcpus {
        assert_eq!(vcpu.offset.get(), at_clock.value.wrapping_sub(set));
    }
}

#[test]
fn counter_without_an_offset_from_its_host_has_no_value_at_another_moment() {
    let saved = SavedTsc { value: SECOND, offset: None, khz: KHZ };
    assert!(saved.at(SECOND).is_none());
    // With an offset from a counter of another rate the sum is far off.
    let scaled = SavedTsc { offset: Some(3), ..saved };
    assert!(scaled.at(500 * SECOND).is_none());
    assert_eq!(scaled.at(2 * SECOND).unwrap().value, 2 * SECOND + 3);
}
