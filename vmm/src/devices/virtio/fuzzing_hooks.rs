//! What devices tell the fuzzing guest: which thread drives them, and where they may write.

use std::cell::{Cell, RefCell};
use std::ops::Range;

thread_local! {
    /// This thread does its devices' work.
    pub(super) static DRIVING: Cell<bool> = const { Cell::new(false) };
    /// Where the guest gave its device leave to write.
    pub(super) static GRANTED: RefCell<Vec<Range<u64>>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn is_driving() -> bool {
    DRIVING.get()
}

/// The guest lets the device write here: a descriptor says so, or a page goes to the balloon.
pub(super) fn grant(at: u64, len: u64) {
    GRANTED.with_borrow_mut(|granted| granted.push(at..at.saturating_add(len)));
}
