//! Replays a working set on the memory of a snapshot, without a VM. Maps the memory as for a VM, touches the
//! pages in their recorded order, and times the touches under each restore strategy ([`strategies`]).
//!
//! ```text
//!   working set ── pages, in order ──┐
//!                                    ├── round after round, each strategy in turn: prepare ── touch, touch, touch …
//!   snapshot ── ReplaySubject ───────┘                                             before     touches
//! ```

pub mod fault_floor;
pub mod lazy_base;
pub mod times;
pub mod touch;
pub mod whole_memory;

mod strategies;
mod subject;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use self::strategies::{PreparedMemory, Strategy};
use self::subject::ReplaySubject;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::progress::Progress;
use crate::replay::times::Times;
use crate::replay::touch::touch;
use crate::snapshot::opened::grant;
use crate::snapshot::opened::grant::Grants;
use crate::snapshot::opened::state;
use crate::snapshot::{WORKING_SET_FILE, WorkingSet};
use crate::store::Store;

/// Pages of a large working set: 4 GiB.
const USUAL_PAGES: u64 = 1 << 20;

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    /// The snapshot's id.
    pub id: String,
    /// Files with the snapshot's memory.
    pub memory_files: Vec<PathBuf>,
    /// File with the working set.
    pub recording: PathBuf,
    /// Pages of 4 KiB in the working set.
    pub pages: u64,
    /// Number of rounds. Each strategy runs once a round.
    pub rounds: u32,
    /// Times of each strategy.
    pub strategies: Vec<Measured>,
}

/// Times of one strategy in nanoseconds, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Name of the strategy.
    pub strategy: &'static str,
    /// Number of touches. The time of each includes reading the clock.
    pub touches: u64,
    /// Total time of the touches.
    pub total_ns: u64,
    /// Average time of a touch.
    pub average_ns: u64,
    /// Shortest touch.
    pub min_ns: u64,
    /// Median touch.
    pub p50_ns: u64,
    /// 99th percentile of the touches.
    pub p99_ns: u64,
    /// Longest touch.
    pub max_ns: u64,
    /// Touched pages per second, in MiB.
    pub mib_per_s: f64,
    /// Preparation before the first touch, including the mapping: median of the rounds.
    pub before_ns: u64,
    /// Pages that stayed in the page cache although it was dropped, in the worst round. Pages stay if another
    /// process maps them, or if the file lies in memory. Absent for strategies that do not drop the cache.
    pub stayed_cached: Option<u64>,
}

/// Replays a working set on the memory of snapshot `name`, `rounds` times under each strategy for such
/// memory. The working set is the file `recording`, or else the one in the snapshot. The base of a diff that
/// this user's volt-vmm did not write must lie in one of the directories `allowed`, as for a restore.
/// `progress` counts the replays.
///
/// # Errors
/// Returns an error in these cases:
///
/// - the snapshot or the recording is missing or damaged
/// - the recording belongs to another snapshot, or names no page
/// - the host refuses memory, a userfaultfd or a thread
pub fn replay(
    store: &Store,
    name: &str,
    recording: Option<&Path>,
    rounds: u32,
    allowed: &[PathBuf],
    progress: &Progress,
) -> Result<Replay> {
    let path = store.path_of(name)?;
    let (manifest, file) = state::read_manifest(&path)?;
    let origin = grant::origin_of(&file, &manifest.metadata, &manifest.config);
    let grants = Grants::of_paths(&origin, &path, allowed);
    let metadata = manifest.metadata;
    let own = || path.join(WORKING_SET_FILE);
    let recording = recording.map_or_else(own, Path::to_owned);
    let set = WorkingSet::read(&recording, &metadata.id, metadata.memory_bytes)?;
    if set.pages() == 0 {
        return Err(Error::snapshot(recording, "the working set names no page"));
    }
    let pages = set.pages();
    let subject = ReplaySubject::open(&path, &metadata, set, &grants)?;
    // Finds damage here, where it is an error. A touch of damaged memory raises a signal.
    subject.read()?;
    let strategies = strategies::of(&subject);
    let mut samples: Vec<_> = strategies.iter().map(|_| StrategySamples::default()).collect();
    progress.begin(u64::from(rounds) * strategies.len() as u64);
    for _ in 0..rounds {
        for (strategy, samples) in strategies.iter().zip(&mut samples) {
            replay_once(strategy, &subject, samples)?;
            progress.add(1)?;
        }
    }
    let strategies =
        strategies.iter().zip(samples).map(|(strategy, samples)| samples.summary(strategy)).collect();
    let memory_files = subject.files();
    Ok(Replay { id: metadata.id, memory_files, recording, pages, rounds, strategies })
}

/// Samples of one strategy.
#[derive(Default)]
struct StrategySamples {
    touches: Vec<Duration>,
    before: Times,
    stayed_cached: Option<u64>,
}

fn replay_once(strategy: &Strategy, subject: &ReplaySubject, samples: &mut StrategySamples) -> Result<()> {
    let PreparedMemory { ram, before, stayed_cached } = (strategy.prepare)(subject)?;
    samples.before.add(before);
    samples.stayed_cached = samples.stayed_cached.max(stayed_cached);
    // A working set of a few bytes may name a huge range of holes. Beyond the usual size, the list grows with
    // the timed touches.
    samples.touches.reserve(subject.set.pages().min(USUAL_PAGES) as usize);
    samples.touches.extend(subject.pages().map(|page| touch(&ram, page)));
    Ok(())
}

impl StrategySamples {
    fn summary(self, strategy: &Strategy) -> Measured {
        let times: Times = self.touches.into_iter().collect();
        let nanoseconds = |time: Duration| time.as_nanos() as u64; // a u64 holds 500 years
        let mib = times.len() as f64 * PAGE as f64 / f64::from(1 << 20);
        Measured {
            strategy: strategy.name,
            touches: times.len() as u64,
            total_ns: nanoseconds(times.total()),
            average_ns: nanoseconds(times.mean()),
            min_ns: nanoseconds(times.min()),
            p50_ns: nanoseconds(times.percentile(50)),
            p99_ns: nanoseconds(times.percentile(99)),
            max_ns: nanoseconds(times.percentile(100)),
            mib_per_s: mib / times.total().as_secs_f64(),
            before_ns: nanoseconds(self.before.percentile(50)),
            stayed_cached: self.stayed_cached,
        }
    }
}
