//! Free page hinting (virtio 1.2, section 5.5.6.4): the host asks, the driver lends it the pages that are free, and gets them
//! back, whatever is in them, when the host says that it is done.
//!
//! ```text
//!           start(): n, interrupt        driver sends n
//!  at rest ─────────────────────> asked ───────────────> hinting: pages are given back
//!     ^  ^                          │                        │
//!     │  └───── stop(): DONE ───────┴────────────────────────┤
//!     └────────────── driver sends STOP: DONE, interrupt ────┘
//! ```

use serde::{Deserialize, Serialize};

/// The host asks for nothing, or the driver has no more.
const STOP: u32 = 0;
/// The driver may have its pages back.
const DONE: u32 = 1;
/// From here on a number is a request of its own.
const FIRST: u32 = 2;

/// How far host and driver have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hinting {
    /// What the host tells the driver, in the configuration space: 0, 1 when it is done, or the number of its request.
    pub host_cmd: u32,
    /// What the driver said last: the request that it answers, or 0 when it had no more.
    pub guest_cmd: Option<u32>,
    /// The number of the last request, so that none is used twice in a row.
    last: u32,
}

impl Hinting {
    pub(super) fn new() -> Self {
        Self { host_cmd: STOP, guest_cmd: None, last: FIRST - 1 }
    }

    /// The host wants hints.
    pub(super) fn start(&mut self) {
        self.last = self.last.checked_add(1).unwrap_or(FIRST);
        self.host_cmd = self.last;
    }

    /// The host wants no more.
    pub(super) fn stop(&mut self) {
        if self.host_cmd >= FIRST {
            self.host_cmd = DONE;
        }
    }

    /// The driver sends a number. True when that ends what the host asked for, so that the driver is to be told.
    pub(super) fn hear(&mut self, number: u32) -> bool {
        let ended = number == STOP && self.is_hinting();
        self.guest_cmd = Some(number);
        if ended {
            self.host_cmd = DONE;
        }
        ended
    }

    /// Whether pages that come now answer what the host asked for. Others the driver may be using again already.
    #[must_use]
    pub fn is_hinting(&self) -> bool {
        self.host_cmd >= FIRST && self.guest_cmd == Some(self.host_cmd)
    }

    /// There is another driver, or none.
    pub(super) fn reset(&mut self) {
        *self = Self { last: self.last, ..Self::new() };
    }
}
