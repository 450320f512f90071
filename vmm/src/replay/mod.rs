//! Replays a working set against the memory of a snapshot, without a VM: touches its pages in their order, in memory as a VM gets it,
//! and says how long that took. Once for each way in which memory may get to a VM ([`strategies`]), side by side.
//!
//! ```text
//!   working set ── pages, in order ──┐
//!                                    ├── round after round, each strategy in turn: prepare ── touch, touch, touch …
//!   snapshot ── Subject ─────────────┘                                             before     touches
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

use self::strategies::{Prepared, Strategy};
use self::subject::Subject;
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

/// Pages that few working sets have more than: 4 GiB.
const USUAL_PAGES: u64 = 1 << 20;

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    /// The snapshot's id.
    pub id: String,
    /// The files that its memory is in.
    pub memory_files: Vec<PathBuf>,
    /// The file with the working set.
    pub recording: PathBuf,
    /// Pages that it names, of 4 KiB.
    pub pages: u64,
    /// How often each strategy had its turn.
    pub rounds: u32,
    /// Each strategy.
    pub strategies: Vec<Measured>,
}

/// What one strategy took. Times are in nanoseconds, of all rounds together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// What it is called.
    pub strategy: &'static str,
    /// How many touches there were, each with what the clock itself takes.
    pub touches: u64,
    /// All of them.
    pub total_ns: u64,
    /// On average.
    pub average_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 99 % of them took no longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Of the pages that were touched.
    pub mib_per_s: f64,
    /// What was done before the first touch: the median of the rounds. Mapping the memory is in it.
    pub before_ns: u64,
    /// Where the page cache was to be dropped: how many of the pages stayed in it all the same, in the worst round. They do where
    /// somebody has them mapped, and where files lie in memory.
    pub stayed_cached: Option<u64>,
}

/// Replays the working set in the file `recording`, or else that beside the snapshot `name`, so many times by
/// each strategy that there is for its memory. If it is a diff that this user's volt-vmm did not write, its
/// base must lie in one of the directories `allowed`, as for a restore. `progress`
/// counts turns.
///
/// # Errors
/// The snapshot or the recording is missing or damaged, the recording is another snapshot's or names no page, or the host refuses
/// memory, a userfaultfd or a thread.
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
    let grants = Grants { origin: &origin, snapshot: &path, allowed };
    let metadata = manifest.metadata;
    let beside = || path.join(WORKING_SET_FILE);
    let recording = recording.map_or_else(beside, Path::to_owned);
    let set = WorkingSet::read(&recording, &metadata.id, metadata.memory_bytes)?;
    if set.pages() == 0 {
        return Err(Error::snapshot(recording, "names no page: there is nothing to replay"));
    }
    let pages = set.pages();
    let subject = Subject::open(&path, &metadata, set, &grants)?;
    // Whatever is damaged is found here, where it is an error and no signal.
    subject.read()?;
    let strategies = strategies::of(&subject);
    let mut gathered: Vec<_> = strategies.iter().map(|_| Gathered::default()).collect();
    progress.begin(u64::from(rounds) * strategies.len() as u64);
    for _ in 0..rounds {
        for (strategy, gathered) in strategies.iter().zip(&mut gathered) {
            turn(strategy, &subject, gathered)?;
            progress.add(1)?;
        }
    }
    let strategies =
        strategies.iter().zip(gathered).map(|(strategy, gathered)| gathered.of(strategy)).collect();
    let memory_files = subject.files();
    Ok(Replay { id: metadata.id, memory_files, recording, pages, rounds, strategies })
}

/// Of one strategy, as it comes.
#[derive(Default)]
struct Gathered {
    touches: Vec<Duration>,
    before: Times,
    stayed_cached: Option<u64>,
}

fn turn(strategy: &Strategy, subject: &Subject, gathered: &mut Gathered) -> Result<()> {
    let Prepared { ram, before, stayed_cached } = (strategy.prepare)(subject)?;
    gathered.before.add(before);
    gathered.stayed_cached = gathered.stayed_cached.max(stayed_cached);
    // A set of a few bytes may name all of a memory that is a hole: beyond this, room is made for touches
    // that have been timed.
    gathered.touches.reserve(subject.set.pages().min(USUAL_PAGES) as usize);
    gathered.touches.extend(subject.pages().map(|page| touch(&ram, page)));
    Ok(())
}

impl Gathered {
    fn of(self, strategy: &Strategy) -> Measured {
        let times: Times = self.touches.into_iter().collect();
        let nanoseconds = |time: Duration| time.as_nanos() as u64; // five hundred years
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
