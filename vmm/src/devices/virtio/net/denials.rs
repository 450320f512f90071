//! Reports of what a policy denies, for the log and for those who follow the VM. A guest can cause any number
//! of them, so both hear of a limited number.

use std::fmt;
use std::sync::Arc;

use log::Level;

use crate::devices::log_limit::LogLimit;
use crate::events::{Events, VmEvent};

/// Reports the denials of one device.
#[derive(Debug)]
pub(super) struct Denials {
    /// Its id.
    device: String,
    log: LogLimit,
    events: Arc<Events>,
}

impl Denials {
    pub fn new(device: &str, events: Arc<Events>) -> Self {
        Self { device: device.to_owned(), log: LogLimit::new(), events }
    }

    /// Reports a denial: by a line, and by what was denied and why.
    pub fn tell(&self, line: fmt::Arguments<'_>, what: impl FnOnce() -> String) {
        let device = &self.device;
        if self.log.log(Level::Warn, format_args!("{device}: {line}")) {
            self.events.emit(|| VmEvent::Denied { device: format!("net-{device}"), what: what() });
        }
    }

    /// Writes a line for who looks for errors.
    pub fn debug(&self, line: fmt::Arguments<'_>) {
        log::debug!("{}: {line}", self.device);
    }
}
