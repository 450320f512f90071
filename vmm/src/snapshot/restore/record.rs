//! Records the pages that a restored guest touches, up to an event.
//!
//! ```text
//!   restore ──> touched, … ──> the marker: no more is noted ──> a thread: working-set beside the snapshot ──> Recorded
//!                         └──> the VM ends before it: nothing is kept, and that is said
//! ```
//!
//! The memory of a recorded VM is filled page by page ([`crate::snapshot::opened::composed`]). This reveals
//! each touch, and is slow. It stays so after the event.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, report};
use crate::memory::PAGE;
use crate::memory::page_set::PageSet;
use crate::sandbox::ThreadKind;
use crate::snapshot::format::working_set::{WorkingSet, WorkingSetFile};
use crate::sync::{lock, wait_while};
use crate::threads;

const ACT: &str = "record the working set";

/// The event that ends a recording. [`crate::Vm::end_recording`] ends any recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RecordUntil {
    /// The guest wrote a whole line to its serial port or its virtio console.
    Console,
    /// A vsock connection is established, from either side.
    Vsock,
    /// The guest ran for this long, in whole milliseconds.
    After(Duration),
    /// Only [`crate::Vm::end_recording`].
    Api,
}

impl fmt::Display for RecordUntil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Console => f.write_str("console"),
            Self::Vsock => f.write_str("vsock"),
            Self::After(time) => write!(f, "{}ms", time.as_millis()),
            Self::Api => f.write_str("api"),
        }
    }
}

impl FromStr for RecordUntil {
    type Err = String;

    /// Parses `console`, `vsock`, `api`, or a time such as `500ms` or `2s`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let time = || {
            let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
            let number = text[..digits].parse().ok()?;
            let unit: fn(u64) -> Duration = match &text[digits..] {
                "ms" => Duration::from_millis,
                "s" => Duration::from_secs,
                _ => return None,
            };
            Some(Self::After(unit(number)))
        };
        match text {
            "console" => Ok(Self::Console),
            "vsock" => Ok(Self::Vsock),
            "api" => Ok(Self::Api),
            _ => time().ok_or_else(|| {
                format!(
                    "{text:?} is not an event that ends a recording; write console, vsock, api, or a time \
                     such as 500ms or 2s"
                )
            }),
        }
    }
}

impl TryFrom<String> for RecordUntil {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<RecordUntil> for String {
    fn from(marker: RecordUntil) -> Self {
        marker.to_string()
    }
}

/// Summary of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecordingSummary {
    /// The event that ended the recording.
    pub marker: RecordUntil,
    /// Pages touched.
    pub pages: u64,
    /// Bytes touched.
    pub bytes: u64,
    /// Runs of adjacent pages touched in ascending order.
    pub runs: u64,
    /// Hits of the former working set, if there was one.
    pub before: Option<WorkingSetHits>,
}

/// How well a working set predicted the touches of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkingSetHits {
    /// Pages in the set.
    pub pages: u64,
    /// Pages in the set that were touched.
    pub hits: u64,
    /// Share of touched pages that were in the set: 0 to 1.
    pub hit_rate: f64,
    /// Pages in the set that were not touched.
    pub in_vain: u64,
}

impl RecordingSummary {
    fn of(marker: RecordUntil, set: &WorkingSet, before: Option<&WorkingSet>, memory: u64) -> Self {
        let pages = set.pages();
        let before = before.map(|before| {
            let (named, hits) = (before.pages(), set.shared_with(before, memory));
            let hit_rate = if pages == 0 { 1.0 } else { hits as f64 / pages as f64 };
            WorkingSetHits { pages: named, hits, hit_rate, in_vain: named - hits }
        });
        Self { marker, pages, bytes: pages * PAGE, runs: set.page_ranges().len() as u64, before }
    }
}

/// A recording. It is dropped after its VM, and has ended then.
#[derive(Debug)]
pub(crate) struct Recording {
    notes: Arc<TouchLog>,
    thread: Option<JoinHandle<()>>,
}

/// The log of touched pages.
#[derive(Debug)]
pub(crate) struct TouchLog {
    marker: RecordUntil,
    inner: Mutex<RecorderState>,
    changed: Condvar,
}

#[derive(Debug)]
struct RecorderState {
    /// Offsets of pages in the order of their touch.
    touched: Vec<u64>,
    seen: PageSet,
    /// The guest has begun to run.
    runs: bool,
    end: Option<End>,
    /// The outcome, with a reason if nothing was kept.
    outcome: Option<std::result::Result<RecordingSummary, String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    RecordUntil,
    /// The VM's.
    Vm,
}

impl TouchLog {
    /// An empty log of a memory of `memory` bytes.
    pub fn new(marker: RecordUntil, memory: u64) -> Arc<Self> {
        let (touched, seen) = (Vec::new(), PageSet::none(memory));
        let inner = RecorderState { touched, seen, runs: false, end: None, outcome: None };
        Arc::new(Self { marker, inner: Mutex::new(inner), changed: Condvar::new() })
    }

    /// The event that ends the log.
    pub fn marker(&self) -> RecordUntil {
        self.marker
    }

    /// Logs a touched page.
    pub fn touched(&self, offset: u64) {
        let mut inner = lock(&self.inner);
        if inner.end.is_none() && !inner.seen.has(offset) {
            inner.seen.add(offset..offset + PAGE);
            inner.touched.push(offset);
        }
    }

    /// Starts the clock: the guest runs.
    pub fn guest_started(&self) {
        lock(&self.inner).runs = true;
        self.changed.notify_all();
    }

    /// Ends the log at its event. Makes no system call except a wake-up: the caller may be a vCPU's thread.
    pub fn reached(&self) {
        self.end(End::RecordUntil);
    }

    /// Ends the log with its VM.
    pub fn vm_ended(&self) {
        self.end(End::Vm);
    }

    fn end(&self, how: End) {
        lock(&self.inner).end.get_or_insert(how);
        self.changed.notify_all();
    }

    fn wait_end(&self) -> End {
        let inner = wait_while(&self.changed, lock(&self.inner), |inner| !inner.runs && inner.end.is_none());
        let mut inner = match self.marker {
            RecordUntil::After(time) => {
                let waited = self.changed.wait_timeout_while(inner, time, |inner| inner.end.is_none());
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            _ => wait_while(&self.changed, inner, |inner| inner.end.is_none()),
        };
        *inner.end.get_or_insert(End::RecordUntil)
    }

    /// Waits for the end, and writes the working set.
    fn keep(&self, beside: &WorkingSetFile) -> std::result::Result<RecordingSummary, String> {
        if self.wait_end() == End::Vm {
            let marker = self.marker;
            return Err(format!(
                "the VM ended before the event that ends the recording ({marker}), so no working set was \
                 written"
            ));
        }
        let touched = std::mem::take(&mut lock(&self.inner).touched);
        let memory = beside.memory();
        let set = WorkingSet::of(memory, touched);
        let before = beside.set().map_err(|error| report(&error))?;
        let recorded = RecordingSummary::of(self.marker, &set, before.as_deref(), memory);
        beside.keep(set).map_err(|error| report(&error))?;
        Ok(recorded)
    }

    fn outcome(&self) -> Result<RecordingSummary> {
        let inner = wait_while(&self.changed, lock(&self.inner), |inner| inner.outcome.is_none());
        let outcome = inner.outcome.clone().unwrap_or_else(|| Err("the recording never ended".to_owned()));
        outcome.map_err(|why| Error::host(ACT, io::Error::other(why)))
    }
}

impl Recording {
    /// Starts the thread that writes the working set.
    ///
    /// # Errors
    /// The host gives no thread.
    pub(crate) fn begin(notes: Arc<TouchLog>, beside: Arc<WorkingSetFile>) -> Result<Self> {
        let noted = Arc::clone(&notes);
        let work = move || {
            let outcome = noted.keep(&beside);
            lock(&noted.inner).outcome = Some(outcome);
            noted.changed.notify_all();
        };
        let thread = threads::spawn(ThreadKind::Worker, "record", work)?;
        Ok(Self { notes, thread: Some(thread) })
    }

    /// The log.
    pub fn notes(&self) -> &Arc<TouchLog> {
        &self.notes
    }

    /// Ends the recording, if it has not ended, and returns its outcome.
    ///
    /// # Errors
    /// The VM ended before, or the file system refuses.
    pub fn finish(&self) -> Result<RecordingSummary> {
        self.notes.reached();
        self.outcome()
    }

    /// Waits for the end, and returns the outcome.
    ///
    /// # Errors
    /// As [`Recording::finish`].
    pub fn outcome(&self) -> Result<RecordingSummary> {
        self.notes.outcome()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.notes.vm_ended();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 64 * PAGE;

    #[test]
    fn markers_are_parsed_and_others_refused() {
        for marker in [
            RecordUntil::Console,
            RecordUntil::Vsock,
            RecordUntil::Api,
            RecordUntil::After(Duration::from_millis(1500)),
        ] {
            assert_eq!(marker.to_string().parse(), Ok(marker));
        }
        assert_eq!("2s".parse(), Ok(RecordUntil::After(Duration::from_secs(2))));
        for wrong in ["", "2", "s", "2m", "-1s", "99999999999999999999s", "Console"] {
            let error = wrong.parse::<RecordUntil>().unwrap_err();
            assert!(error.contains("write console, vsock, api, or a time"), "{error}");
        }
    }

    #[test]
    fn hits_count_the_touched_pages_of_the_set() {
        let set = |pages: &[u64]| WorkingSet::of(MEMORY, pages.iter().map(|page| page * PAGE));
        let touched = set(&[5, 6, 9, 1]);
        let recorded =
            RecordingSummary::of(RecordUntil::Api, &touched, Some(&set(&[1, 5, 20, 21, 22])), MEMORY);
        assert_eq!((recorded.pages, recorded.bytes, recorded.runs), (4, 4 * PAGE, 3));
        assert_eq!(recorded.before, Some(WorkingSetHits { pages: 5, hits: 2, hit_rate: 0.5, in_vain: 3 }));
        assert_eq!(RecordingSummary::of(RecordUntil::Api, &touched, None, MEMORY).before, None);
    }

    #[test]
    fn recording_ends_at_its_marker_and_is_dropped_with_its_vm() {
        let directory = crate::testing::ScratchDir::new();
        let beside = WorkingSetFile::of(&directory, "7", MEMORY);
        let begin = |marker| Recording::begin(TouchLog::new(marker, MEMORY), Arc::clone(&beside)).unwrap();
        let recording = begin(RecordUntil::Console);
        recording.notes().guest_started();
        recording.notes().touched(0);
        recording.notes().vm_ended();
        recording.notes().reached();
        let error = report(&recording.finish().unwrap_err());
        assert!(error.contains("ended before the event that ends the recording (console)"), "{error}");
        assert_eq!(std::fs::read_dir(&*directory).unwrap().count(), 0);
        let recording = begin(RecordUntil::Api);
        for page in [3, 2, 3, 5] {
            recording.notes().touched(page * PAGE);
        }
        recording.notes().reached();
        recording.notes().touched(9 * PAGE);
        recording.notes().vm_ended();
        assert_eq!(recording.finish().unwrap().pages, 3);
        let kept = WorkingSet::open(&directory, "7", MEMORY).unwrap().unwrap();
        assert_eq!(kept.page_ranges()[..], [3 * PAGE..4 * PAGE, 2 * PAGE..3 * PAGE, 5 * PAGE..6 * PAGE]);
        assert_eq!(beside.set().unwrap().as_deref(), Some(&kept));
    }
}
