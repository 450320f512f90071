//! The writes to a disk, in order, and the states in which a power cut may leave it.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::image::{BLOCK, Image};
use super::log::Entry;
use super::mounted::{Unmounted, mount_ext4};
use crate::host::LoopDevice;
use crate::namespace;
use crate::scratch::Scratch;

/// See the module.
#[derive(Debug)]
pub struct Recording {
    /// The disk before the first entry.
    image: Image,
    entries: Vec<Entry>,
    log: File,
    scratch: Scratch,
}

/// A part of a recording that is on the medium.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// The number of entries that are wholly on the medium.
    whole: usize,
    /// From there to this entry, each block is on the medium or not, by chance.
    parts_until: usize,
    /// The chance: a seed, and how many blocks of a hundred are on the medium.
    chance: (u64, u64),
}

impl Recording {
    pub(super) fn new(image: Image, entries: Vec<Entry>, log: PathBuf, scratch: Scratch) -> Self {
        let log = File::open(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        Self { image, entries, log, scratch }
    }

    /// Returns `count` states that are possible after the mark `from`. First come the least states at marks
    /// that begin with `promise`. The others alternate between prefixes of the log and parts of the writes of
    /// one flush.
    ///
    /// # Panics
    /// The mark does not exist.
    #[must_use]
    pub fn states(&self, from: &str, promise: &str, count: usize, seed: u64) -> Vec<State> {
        let is = |entry: &Entry, start: &str| matches!(entry, Entry::Mark(text) if text.starts_with(start));
        let first = self.entries.iter().position(|entry| is(entry, from)).expect("the mark was made") + 1;
        let mut chance = Chance(seed | 1);
        let promises: Vec<_> =
            (first..self.entries.len()).filter(|at| is(&self.entries[*at], promise)).collect();
        assert!(!promises.is_empty(), "no mark {promise} after {from}");
        let mut states = BTreeSet::new();
        for _ in 0..promises.len().min(count / 2 + 1) {
            states.insert(State::prefix(promises[chance.below(promises.len())] + 1));
        }
        states.insert(State::prefix(promises[promises.len() - 1] + 1));
        let flushed = self.flushed(first);
        assert!(!flushed.is_empty(), "nothing was flushed after {from}");
        // A short log may have fewer states than `count`.
        for turn in 0..count * 4 {
            if states.len() >= count {
                break;
            }
            states.insert(if turn % 3 == 0 {
                State::prefix(first + chance.below(self.entries.len() - first))
            } else {
                let parts = flushed[chance.below(flushed.len())].clone();
                let percent = [5, 50, 95][chance.below(3)];
                State { whole: parts.start, parts_until: parts.end, chance: (chance.next(), percent) }
            });
        }
        states.into_iter().collect()
    }

    /// Groups the writes that the disk could hold back by the flush that they wait for.
    fn flushed(&self, first: usize) -> Vec<Range<usize>> {
        let held_back = |at: usize| matches!(self.entries[at], Entry::Write { held_back: true, .. });
        let mut groups = Vec::new();
        let mut at = first;
        while at < self.entries.len() {
            let start = at;
            while at < self.entries.len() && held_back(at) {
                at += 1;
            }
            if at > start {
                groups.push(start..at);
            }
            at += 1;
        }
        groups
    }

    /// Writes each state to a disk, mounts it, and calls `check` with the directory and the earlier marks.
    /// Processes that `check` starts see another boot id.
    ///
    /// # Panics
    /// A state cannot be mounted, or `check` panics. The message names the state.
    pub fn after_each(&self, states: &[State], check: impl FnMut(&Path, &[&str]) + Send) {
        std::thread::scope(|scope| {
            let checked = scope.spawn(|| {
                namespace::enter_other_boot(&self.scratch.fresh("boot-id"));
                self.check_each(states, check);
            });
            checked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    fn check_each(&self, states: &[State], mut check: impl FnMut(&Path, &[&str])) {
        let mut image = self.image.clone();
        let mut applied = 0;
        for state in states {
            let said = format!(
                "after a power cut: {} of {} entries, then {state:?}",
                state.whole,
                self.entries.len()
            );
            let named = NamedState(&said);
            self.entries[applied..state.whole]
                .iter()
                .for_each(|entry| self.apply(entry, &mut image, |_| true));
            applied = state.whole;
            let mut torn = image.clone();
            let mut chance = Chance(state.chance.0 | 1);
            for entry in &self.entries[state.whole..state.parts_until] {
                self.apply(entry, &mut torn, |_| chance.below(100) < state.chance.1 as usize);
            }
            let marks: Vec<_> = self.entries[..state.whole]
                .iter()
                .filter_map(|entry| if let Entry::Mark(text) = entry { Some(text.as_str()) } else { None })
                .collect();
            self.mounted(&torn, |place| check(place, &marks));
            drop(named);
        }
    }

    fn mounted(&self, image: &Image, check: impl FnOnce(&Path)) {
        let (disk, place) = (self.scratch.fresh("remains"), self.scratch.fresh("remains-at"));
        image.write(&disk).expect("write a disk");
        std::fs::create_dir(&place).expect("make a directory");
        let device = LoopDevice::over(&disk);
        mount_ext4(Path::new(device.path()), &place);
        let unmounted = Unmounted::at(&place);
        check(&place);
        drop(unmounted);
        drop(device);
        std::fs::remove_file(disk).expect("remove a disk");
    }

    /// Applies the blocks of an entry that `chosen` selects.
    fn apply(&self, entry: &Entry, image: &mut Image, mut chosen: impl FnMut(u64) -> bool) {
        match *entry {
            Entry::Write { at, len, in_log, .. } => {
                let mut bytes = vec![0; len as usize];
                self.log.read_exact_at(&mut bytes, in_log).expect("read the log");
                for (number, block) in bytes.chunks(BLOCK).enumerate() {
                    let offset = (number * BLOCK) as u64;
                    if chosen(at + offset) {
                        image.put(at + offset, block);
                    }
                }
            }
            Entry::Discard { at, len } => image.put(at, &vec![0; len as usize]),
            Entry::Flush | Entry::Mark(_) => {}
        }
    }
}

impl State {
    fn prefix(whole: usize) -> Self {
        Self { whole, parts_until: whole, chance: (0, 0) }
    }
}

/// Prints the disk's state if a check panics.
struct NamedState<'a>(&'a str);

impl Drop for NamedState<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// Random numbers, equal for equal seeds (xorshift).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }
}
