//! Hooks by which devices inform the fuzzing guest: the thread that drives them, and the memory that they may
//! write.

use std::cell::{Cell, RefCell};
use std::ops::Range;

thread_local! {
    /// Whether this thread drives its devices.
    pub(super) static DRIVING: Cell<bool> = const { Cell::new(false) };
    /// Memory that the guest lets its device write.
    pub(super) static GRANTED: RefCell<Vec<Range<u64>>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn is_driving() -> bool {
    DRIVING.get()
}

/// Records that the guest lets the device write here, by a descriptor or by a page for the balloon.
pub(super) fn grant(at: u64, len: u64) {
    GRANTED.with_borrow_mut(|granted| granted.push(at..at.saturating_add(len)));
}
