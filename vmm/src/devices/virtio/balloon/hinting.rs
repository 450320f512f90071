//! Free page hinting (virtio 1.2, section 5.5.6.4). The host requests hints, and the driver lends it free
//! pages. The driver gets the pages back with any content when the host is done.
//!
//! ```text
//!           start(): n, interrupt        driver sends n
//!  at rest ─────────────────────> asked ───────────────> hinting: pages are returned
//!     ^  ^                          │                        │
//!     │  └───── stop(): DONE ───────┴────────────────────────┤
//!     └────────────── driver sends STOP: DONE, interrupt ────┘
//! ```
//!
//! With [`Hinting::keeps_pages`], STOP of the driver changes nothing, and only the host ends the request.

use serde::{Deserialize, Serialize};

/// The host has no request, or the driver has no more pages.
const STOP: u32 = 0;
/// The driver may reuse its pages.
const DONE: u32 = 1;
/// First number of a request.
const FIRST: u32 = 2;

/// Progress of host and driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hinting {
    /// The host's command in the configuration space: 0, 1 for done, or the number of a request.
    pub host_cmd: u32,
    /// The driver's last number: the request that it answers, or 0 if it has no more pages.
    pub guest_cmd: Option<u32>,
    /// Number of the last request, so that the next one gets another.
    last: u32,
    /// Whether the driver may not reuse its pages before [`Hinting::stop`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    keeps_pages: bool,
}

impl Hinting {
    pub(super) fn new() -> Self {
        Self { host_cmd: STOP, guest_cmd: None, last: FIRST - 1, keeps_pages: false }
    }

    /// Requests hints. The driver may not reuse its pages before [`Hinting::stop`] if `keeps_pages`.
    pub(super) fn start(&mut self, keeps_pages: bool) {
        self.keeps_pages = keeps_pages;
        self.last = self.last.checked_add(1).unwrap_or(FIRST);
        self.host_cmd = self.last;
    }

    /// Ends the request.
    pub(super) fn stop(&mut self) {
        if self.host_cmd >= FIRST {
            self.host_cmd = DONE;
        }
    }

    /// Takes a number from the driver. Returns true if it ends the request: the driver must be told.
    pub(super) fn hear(&mut self, number: u32) -> bool {
        let ended = number == STOP && self.is_hinting() && !self.keeps_pages;
        self.guest_cmd = Some(number);
        if ended {
            self.host_cmd = DONE;
        }
        ended
    }

    /// Whether pages that come now answer the request. The driver may be using any others already.
    #[must_use]
    pub fn is_hinting(&self) -> bool {
        self.host_cmd >= FIRST && self.guest_cmd == Some(self.host_cmd)
    }

    /// Forgets the driver's number.
    pub(super) fn reset(&mut self) {
        *self = Self { last: self.last, ..Self::new() };
    }
}
