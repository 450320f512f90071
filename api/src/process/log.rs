//! The library's log: one line per record on standard error. The library logs what a guest can cause once for
//! each stop of a device.

use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

struct StderrLog;

static LOG: StderrLog = StderrLog;

/// Starts to print the warnings and errors of this project's crates.
pub(crate) fn start() {
    if log::set_logger(&LOG).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

impl Log for StderrLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // virtio-queue logs each invalid access of a guest, so a guest could flood the log.
        metadata.level() <= Level::Warn && metadata.target().starts_with("volt_")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // In one piece, so that lines of several threads do not mix.
            let line = format!("volt-vmm: {}\n", record.args());
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}
