//! `count`, `fill` and `check`: a guest that detects lost or changed state after a restore.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::console;
use crate::outcome::Outcome;
use crate::pattern::{Corrupt, Pattern};
use crate::sleepers;

const INTERVAL: Duration = Duration::from_millis(100);

static PATTERN: Mutex<Option<Pattern>> = Mutex::new(None);
static COUNTING: AtomicBool = AtomicBool::new(false);

/// `fill MIB`: replaces the memory under test by MIB of newly filled pages.
pub(crate) fn fill(mib: u64) -> Outcome {
    let mut pattern = pattern();
    *pattern = None;
    let mib = usize::try_from(mib).map_err(|error| error.to_string())?;
    *pattern = Some(Pattern::new(mib).ok_or_else(|| format!("cannot allocate {mib} MiB"))?);
    Ok(())
}

/// `check`: verifies all of the memory under test and prints `generation G`.
pub(crate) fn check() -> Outcome {
    let pattern = pattern();
    let pattern = pattern.as_ref().ok_or("nothing filled")?;
    pattern.check().map_err(|Corrupt(page)| format!("corrupt page {page}"))?;
    console::line(&format!("generation {}", pattern.generation()));
    Ok(())
}

/// `count`: prints `count N` ten times a second, from 1 up, each after a step through the memory under test.
///
/// A corrupt page ends it with `corrupt page I`.
pub(crate) fn count() -> Outcome {
    if COUNTING.swap(true, Ordering::Relaxed) {
        return Err("counting already".to_owned());
    }
    sleepers::in_background(|| {
        for number in 1_u64.. {
            std::thread::sleep(INTERVAL);
            if let Some(Err(Corrupt(page))) = pattern().as_mut().map(Pattern::step) {
                console::line(&format!("corrupt page {page}"));
                break;
            }
            console::line(&format!("count {number}"));
        }
        COUNTING.store(false, Ordering::Relaxed);
    })
}

fn pattern() -> MutexGuard<'static, Option<Pattern>> {
    PATTERN.lock().unwrap_or_else(PoisonError::into_inner)
}
