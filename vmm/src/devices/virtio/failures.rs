//! Failures that stop a device, for the log and for those who follow the VM. A guest can cause any number of
//! them, so both hear of a limited number.

use std::fmt;
use std::sync::Arc;

use log::Level;

use crate::devices::log_limit::LogLimit;
use crate::events::{Events, VmEvent};

/// Reports the failures of one device. It outlives the device's resets.
#[derive(Debug)]
pub(crate) struct Failures {
    pub(super) log: LogLimit,
    events: Arc<Events>,
}

impl Failures {
    pub(super) fn new(events: Arc<Events>) -> Self {
        Self { log: LogLimit::new(), events }
    }

    /// Reports that the device `name` stops.
    pub(super) fn report(&self, level: Level, name: &str, problem: fmt::Arguments<'_>) {
        let line = format_args!("{name}: {problem}; the device stops until its driver resets it");
        if self.log.log(level, line) {
            self.events
                .emit(|| VmEvent::DeviceFailed { device: name.to_owned(), problem: problem.to_string() });
        }
    }
}
