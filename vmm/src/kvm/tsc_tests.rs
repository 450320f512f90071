//! A model of what Linux 6.1 does with a written TSC (`kvm_synchronize_tsc`), and restores on it: with offsets and without, young
//! guests and old, into VMs of every age.

use std::cell::Cell;

use super::*;

const KHZ: u32 = 2_000_000;
const SECOND: u64 = KHZ as u64 * 1000;
/// Cycles that pass with each call.
const STEP: u64 = 3000;
/// What a counter may be off: a restore makes a few calls.
const FEW: i64 = 20 * STEP.cast_signed();

/// The clock of a VM, as KVM keeps it.
struct Host {
    /// The host's TSC at the guest's rate.
    now: Cell<u64>,
    last_write: Cell<u64>,
    last_write_at: Cell<u64>,
    /// That of the generation, which a synchronised vCPU is given.
    generation: Cell<u64>,
    kind: Kind,
}

/// What a KVM offers, and at which rate a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Offsets, at the host's rate.
    Offsets,
    /// Offsets, at another rate than the host's.
    Scaled,
    /// No offsets (Linux before 5.16), at the host's rate.
    Writes,
    /// No offsets, at another rate.
    ScaledWrites,
}
use Kind::{Offsets, Scaled, ScaledWrites, Writes};

const KINDS: [Kind; 4] = [Offsets, Scaled, Writes, ScaledWrites];

struct Vcpu<'a> {
    host: &'a Host,
    offset: Cell<u64>,
}

impl Host {
    fn new(kind: Kind) -> Self {
        Self {
            now: Cell::new(1 << 50),
            last_write: Cell::new(0),
            last_write_at: Cell::new(1 << 50),
            generation: Cell::new((1_u64 << 50).wrapping_neg()),
            kind,
        }
    }

    fn vcpus(&self, count: usize) -> Vec<Vcpu<'_>> {
        (0..count).map(|_| Vcpu { host: self, offset: Cell::new(self.generation.get()) }).collect()
    }

    fn passes(&self, cycles: u64) -> u64 {
        self.now.set(self.now.get() + cycles);
        self.now.get()
    }
}

impl Counter for &Vcpu<'_> {
    fn host(&self) -> Option<u64> {
        matches!(self.host.kind, Offsets | Writes).then(|| self.host.passes(STEP))
    }

    fn offset(&self) -> Result<Option<u64>> {
        self.host.passes(STEP);
        Ok(matches!(self.host.kind, Offsets | Scaled).then(|| self.offset.get()))
    }

    fn set_offset(&self, offset: u64) -> Result<bool> {
        let now = self.host.passes(STEP);
        if matches!(self.host.kind, Writes | ScaledWrites) {
            return Ok(false);
        }
        self.offset.set(offset);
        self.host.last_write.set(now.wrapping_add(offset));
        self.host.last_write_at.set(now);
        Ok(true)
    }

    fn read(&self) -> Result<u64> {
        Ok(self.host.passes(STEP).wrapping_add(self.offset.get()))
    }

    fn write(&self, value: u64) -> Result<()> {
        let Host { last_write, last_write_at, generation, .. } = self.host;
        let now = self.host.passes(STEP);
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

/// Restores into a VM of this age, and returns what each counter was off its saved line, in cycles.
fn errors(host: &Host, age: u64, saved: &[SavedTsc], distances: &[u64]) -> Vec<i64> {
    let vcpus = host.vcpus(saved.len());
    host.passes(age);
    let began = host.now.get();
    restore(&vcpus.iter().zip(saved.iter().copied()).collect::<Vec<_>>()).unwrap();
    let since = host.now.get() - began;
    let reads = |vcpu: &Vcpu<'_>| host.now.get().wrapping_add(vcpu.offset.get());
    let expected = |distance: &u64| saved[0].value.wrapping_add(*distance).wrapping_add(since);
    let off = |(vcpu, distance)| reads(vcpu).wrapping_sub(expected(distance)).cast_signed();
    vcpus.iter().zip(distances).map(off).collect()
}

/// Those of vCPUs that were each read a little after the one before.
fn saved(value: u64, distances: &[u64], tells_offsets: bool) -> Vec<SavedTsc> {
    let of = |(id, distance): (usize, &u64)| SavedTsc {
        value: value.wrapping_add(*distance).wrapping_add(id as u64 * 50_000),
        offset: tells_offsets.then(|| 0xdead_0000_u64.wrapping_neg().wrapping_add(*distance)),
        khz: KHZ,
    };
    distances.iter().enumerate().map(of).collect()
}

#[test]
fn the_tsc_goes_on_from_where_it_stood_in_a_vm_of_any_age() {
    for kind in KINDS {
        for value in [1, SECOND / 3, SECOND, 500 * SECOND, 1 << 62, u64::MAX - 5] {
            for age in [0, SECOND / 5, SECOND / 2, SECOND * 9 / 10, 500 * SECOND] {
                for vcpus in [1, 2, 5] {
                    let distances = vec![0; vcpus];
                    let saved = saved(value, &distances, true);
                    let host = Host::new(kind);
                    let off = errors(&host, age, &saved, &distances);
                    let is_right = off[0].abs() <= FEW && off.iter().all(|each| *each == off[0]);
                    assert!(is_right, "{off:?}: {value} {age} {vcpus} {kind:?}");
                }
            }
        }
    }
}

#[test]
fn without_the_throw_away_write_the_model_drops_the_tsc_of_a_young_guest() {
    let host = Host::new(Writes);
    let vcpus = host.vcpus(1);
    host.passes(SECOND / 2);
    (&vcpus[0]).write(SECOND / 4).unwrap();
    assert!((&vcpus[0]).read().unwrap() > SECOND / 2);
}

#[test]
fn distances_between_vcpus_are_kept() {
    let ms = SECOND / 1000;
    for distances in [vec![0, 7 * ms, 0, 7 * ms], vec![0, ms.wrapping_neg(), 3 * SECOND, 0]] {
        for kind in KINDS {
            let host = Host::new(kind);
            let off = errors(&host, SECOND / 2, &saved(SECOND / 3, &distances, true), &distances);
            assert!(off.iter().all(|each| each.abs() <= FEW), "{off:?} {kind:?}");
            let off_of_equals = |distance: u64| {
                let mut of =
                    off.iter().zip(&distances).filter(move |(_, d)| **d == distance).map(|(o, _)| *o);
                let first = of.next().unwrap();
                of.all(|each| each == first)
            };
            assert!(distances.iter().all(|distance| off_of_equals(*distance)), "{off:?} {kind:?}");
        }
    }
}

#[test]
fn an_older_snapshot_without_offsets_keeps_its_vcpus_together() {
    for kind in KINDS {
        let host = Host::new(kind);
        let off = errors(&host, SECOND / 2, &saved(SECOND / 3, &[0, 0, 0], false), &[0, 0, 0]);
        assert!(off[0].abs() <= FEW && off.iter().all(|each| *each == off[0]), "{off:?}");
        let apart = [0, 5 * SECOND];
        let off = errors(&Host::new(kind), SECOND, &saved(SECOND, &apart, false), &apart);
        assert!(off[0].abs() <= FEW && (off[1] - 50_000).abs() <= FEW, "{off:?}");
    }
}

#[test]
fn a_vm_that_is_rewound_goes_back() {
    for kind in KINDS {
        let host = Host::new(kind);
        let vcpus = host.vcpus(2);
        let saved = saved(100 * SECOND, &[0, 0], true);
        let restore = || restore(&vcpus.iter().zip(saved.iter().copied()).collect::<Vec<_>>()).unwrap();
        restore();
        host.passes(SECOND / 2);
        restore();
        let read = (&vcpus[1]).read().unwrap();
        assert!(read - 100 * SECOND < FEW.cast_unsigned(), "{read}");
        assert_eq!(vcpus[0].offset, vcpus[1].offset);
    }
}
