//! Recording which pages a restored guest touches, until a marker.
//!
//! ```text
//!   restore ──> touched, … ──> the marker: no more is noted ──> a thread: working-set beside the snapshot ──> Recorded
//!                         └──> the VM ends before it: nothing is kept, and that is said
//! ```
//!
//! The memory of such a VM is filled page by page as it is touched ([`crate::snapshot::opened::composed`]), which is what makes touches known, and slow. It
//! stays so after the marker.

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
use crate::snapshot::format::working_set::{WorkingSet, WorkingSetFile};
use crate::sync::{lock, wait_while};
use crate::threads;

const ACT: &str = "record the working set";

/// What ends a recording. [`crate::Vm::end_recording`] ends any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RecordUntil {
    /// The guest has written a whole line, to its serial port or its virtio console.
    Console,
    /// A connection over vsock is established, whoever began it.
    Vsock,
    /// It has run for so long, in milliseconds at the finest.
    After(Duration),
    /// [`crate::Vm::end_recording`], and nothing else.
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

    /// `console`, `vsock`, `api`, or a time as `500ms` or `2s`.
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
                format!("{text:?} is no marker; write console, vsock, api, or a time as 500ms or 2s")
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

/// What was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RecordingSummary {
    /// What the recording was to end at.
    pub marker: RecordUntil,
    /// Pages that were touched.
    pub pages: u64,
    /// The same in bytes.
    pub bytes: u64,
    /// Runs of pages that were touched one after another and lie so too.
    pub runs: u64,
    /// How good the set was that was there before, if there was one.
    pub before: Option<WorkingSetHits>,
}

/// How well a working set foretold what was touched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WorkingSetHits {
    /// Pages that it named.
    pub pages: u64,
    /// Pages that it named and that were touched.
    pub hits: u64,
    /// Their share of all pages that were touched: 0 to 1.
    pub hit_rate: f64,
    /// Pages that it named and that were not touched.
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
        Self { marker, pages, bytes: pages * PAGE, runs: set.runs().len() as u64, before }
    }
}

/// A recording. Dropped, which its VM must be before, it has ended.
#[derive(Debug)]
pub(crate) struct Recording {
    notes: Arc<TouchLog>,
    thread: Option<JoinHandle<()>>,
}

/// What is noted, by whoever is told.
#[derive(Debug)]
pub(crate) struct TouchLog {
    marker: RecordUntil,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    /// Offsets of pages in the order in which they were touched.
    touched: Vec<u64>,
    seen: PageSet,
    /// The guest has begun to run.
    runs: bool,
    end: Option<End>,
    /// What came of it: a reason where nothing did.
    outcome: Option<std::result::Result<RecordingSummary, String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    RecordUntil,
    /// The VM's.
    Vm,
}

impl TouchLog {
    /// Nothing yet, of so many bytes of memory.
    pub fn new(marker: RecordUntil, memory: u64) -> Arc<Self> {
        let (touched, seen) = (Vec::new(), PageSet::none(memory));
        let inner = Inner { touched, seen, runs: false, end: None, outcome: None };
        Arc::new(Self { marker, inner: Mutex::new(inner), changed: Condvar::new() })
    }

    /// What they end at.
    pub fn marker(&self) -> RecordUntil {
        self.marker
    }

    /// A page was touched.
    pub fn touched(&self, offset: u64) {
        let mut inner = lock(&self.inner);
        if inner.end.is_none() && !inner.seen.has(offset) {
            inner.seen.add(offset..offset + PAGE);
            inner.touched.push(offset);
        }
    }

    /// The guest runs.
    pub fn runs(&self) {
        lock(&self.inner).runs = true;
        self.changed.notify_all();
    }

    /// The marker is reached. No system call but a wake-up: this may be a vCPU's thread.
    pub fn reached(&self) {
        self.end(End::RecordUntil);
    }

    /// The VM has ended.
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

    /// Keeps what was noted by the end.
    fn keep(&self, beside: &WorkingSetFile) -> std::result::Result<RecordingSummary, String> {
        if self.wait_end() == End::Vm {
            let marker = self.marker;
            return Err(format!("the VM ended before the marker ({marker}), and nothing is kept"));
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
        let outcome = inner.outcome.clone().unwrap_or_else(|| Err("it never ended".to_owned()));
        outcome.map_err(|why| Error::host(ACT, io::Error::other(why)))
    }
}

impl Recording {
    /// Begins the thread that will keep what is noted.
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
        let thread = threads::spawn("record", work)?;
        Ok(Self { notes, thread: Some(thread) })
    }

    /// What is noted.
    pub fn notes(&self) -> &Arc<TouchLog> {
        &self.notes
    }

    /// Ends it, if it has not ended, and says what came of it.
    ///
    /// # Errors
    /// The VM ended before, or the file system refuses.
    pub fn finish(&self) -> Result<RecordingSummary> {
        self.notes.reached();
        self.outcome()
    }

    /// Waits until it has ended, and says what came of it.
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
    fn markers_are_what_they_say() {
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
    fn a_set_is_as_good_as_what_it_foretold() {
        let set = |pages: &[u64]| WorkingSet::of(MEMORY, pages.iter().map(|page| page * PAGE));
        let touched = set(&[5, 6, 9, 1]);
        let recorded =
            RecordingSummary::of(RecordUntil::Api, &touched, Some(&set(&[1, 5, 20, 21, 22])), MEMORY);
        assert_eq!((recorded.pages, recorded.bytes, recorded.runs), (4, 4 * PAGE, 3));
        assert_eq!(recorded.before, Some(WorkingSetHits { pages: 5, hits: 2, hit_rate: 0.5, in_vain: 3 }));
        assert_eq!(RecordingSummary::of(RecordUntil::Api, &touched, None, MEMORY).before, None);
    }

    #[test]
    fn nothing_is_noted_after_the_end_and_nothing_kept_of_a_vm_that_has_ended() {
        let directory = std::env::temp_dir().join(format!("volt-recording-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let beside = WorkingSetFile::of(&directory, "7", MEMORY);
        let begin = |marker| Recording::begin(TouchLog::new(marker, MEMORY), Arc::clone(&beside)).unwrap();
        let recording = begin(RecordUntil::Console);
        recording.notes().runs();
        recording.notes().touched(0);
        recording.notes().vm_ended();
        recording.notes().reached();
        let error = report(&recording.finish().unwrap_err());
        assert!(error.contains("ended before the marker (console)"), "{error}");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        let recording = begin(RecordUntil::Api);
        for page in [3, 2, 3, 5] {
            recording.notes().touched(page * PAGE);
        }
        recording.notes().reached();
        recording.notes().touched(9 * PAGE);
        recording.notes().vm_ended();
        assert_eq!(recording.finish().unwrap().pages, 3);
        let kept = WorkingSet::open(&directory, "7", MEMORY).unwrap().unwrap();
        assert_eq!(kept.runs()[..], [3 * PAGE..4 * PAGE, 2 * PAGE..3 * PAGE, 5 * PAGE..6 * PAGE]);
        assert_eq!(beside.set().unwrap().as_deref(), Some(&kept));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
