//! The two ways.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use volt_benches::OrSay;

use super::guest::Guest;
use super::memory::memfd;
use super::userfault::Userfault;

/// Bytes copied at once, and between two looks at who waits.
const STEP: u64 = 64 << 10;
/// As in `vmm/src/snapshot/take/capture.rs`.
const FEW: u64 = 256;
const MOST_PASSES: u32 = 12;
const PAGE: u64 = 4096;

/// How memory is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    DirtyLog,
    WriteProtect,
}

/// The measurement of one copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub pause: Duration,
    pub stall: Duration,
    pub whole: Duration,
    pub pages_in_pause: u64,
    pub faults: u64,
    /// Writes of the guest a second meanwhile.
    pub speed: f64,
}

/// Why there is no copy.
#[derive(Debug)]
pub enum Failed {
    /// The kernel cannot do it with memory of this kind.
    Refused(String),
    Error(String),
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::Error(why)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(why) | Self::Error(why)) = self;
        f.write_str(why)
    }
}

impl Way {
    pub const ALL: [Self; 2] = [Self::DirtyLog, Self::WriteProtect];

    pub fn name(self) -> &'static str {
        match self {
            Self::DirtyLog => "dirty log",
            Self::WriteProtect => "write protection",
        }
    }

    /// Copies a guest's memory; if it `checks`, compares the copy with what it was at the instant.
    pub fn copy(self, guest: &Guest, checks: bool) -> Result<Outcome, Failed> {
        let to = memfd(guest.memory.len)?;
        // Everything that the guest had written before the instant.
        let mut expected = None;
        let mut at_instant = || {
            if checks {
                expected = Some(guest.memory.content());
            }
        };
        let _ = guest.longest_gap();
        let (start, before) = (Instant::now(), guest.writes());
        let mut outcome = match self {
            Self::DirtyLog => dirty_log(guest, &to, &mut at_instant)?,
            Self::WriteProtect => write_protect(guest, &to, &mut at_instant)?,
        };
        outcome.whole = start.elapsed();
        outcome.speed = (guest.writes() - before) as f64 / outcome.whole.as_secs_f64();
        outcome.stall = guest.longest_gap();
        if let Some(expected) = expected {
            let mut found = vec![0; expected.len()];
            to.read_exact_at(&mut found, 0).or_say("read the copy")?;
            let pages = expected.chunks(PAGE as usize).zip(found.chunks(PAGE as usize));
            let wrong = pages.filter(|(expected, found)| expected != found).count();
            if wrong > 0 {
                return Err(Failed::Error(format!("{wrong} pages of the copy are wrong")));
            }
        }
        Ok(outcome)
    }
}

fn copy_all(guest: &Guest, to: &File) -> io::Result<()> {
    (0..guest.memory.len).step_by(STEP as usize).try_for_each(|at| guest.memory.copy_to(to, at, STEP))
}

fn dirty_log(guest: &Guest, to: &File, at_instant: &mut dyn FnMut()) -> Result<Outcome, Failed> {
    let mut outcome = Outcome::default();
    guest.log(true)?;
    copy_all(guest, to).or_say("copy memory")?;
    let mut before = u64::MAX;
    for _ in 0..MOST_PASSES {
        let left = copy_written(guest, to)?;
        if left <= FEW || left >= before {
            break;
        }
        before = left;
    }
    let (copied, pause) = guest.paused(|| {
        let copied = copy_written(guest, to);
        at_instant();
        copied
    });
    (outcome.pages_in_pause, outcome.pause) = (copied?, pause);
    guest.log(false)?;
    Ok(outcome)
}

/// Copies what was written since the last time, and says how many pages that was.
fn copy_written(guest: &Guest, to: &File) -> Result<u64, Failed> {
    let mut count = 0;
    for (word, bits) in (0_u64..).zip(guest.written()?) {
        for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
            guest.memory.copy_to(to, (word * 64 + bit) * PAGE, PAGE).or_say("copy pages")?;
            count += 1;
        }
    }
    Ok(count)
}

fn write_protect(guest: &Guest, to: &File, at_instant: &mut dyn FnMut()) -> Result<Outcome, Failed> {
    let memory = &guest.memory;
    let watched = Userfault::over(memory.start, memory.len)
        .map_err(|error| Failed::Refused(format!("the kernel refuses: {error}")))?;
    let (protected, pause) = guest.paused(|| {
        let protected = watched.protect(0, memory.len, true);
        at_instant();
        protected
    });
    protected.or_say("protect memory")?;
    let mut outcome = Outcome { pause, ..Outcome::default() };
    copy_protected(&watched, guest, to, &mut outcome.faults).or_say("copy protected memory")?;
    Ok(outcome)
}

/// Copies all, and before it what the guest waits for.
fn copy_protected(watched: &Userfault, guest: &Guest, to: &File, faults: &mut u64) -> io::Result<()> {
    let memory = &guest.memory;
    let mut done = vec![false; (memory.len / PAGE) as usize];
    for step in (0..memory.len).step_by(STEP as usize) {
        *faults += watched.faults(|page| {
            let copied = &mut done[(page / PAGE) as usize];
            if !std::mem::replace(copied, true) {
                memory.copy_to(to, page, PAGE)?;
            }
            watched.protect(page, PAGE, false)
        })?;
        for page in (step..step + STEP).step_by(PAGE as usize) {
            let copied = &mut done[(page / PAGE) as usize];
            if !std::mem::replace(copied, true) {
                memory.copy_to(to, page, PAGE)?;
            }
        }
        watched.protect(step, STEP, false)?;
    }
    Ok(())
}
