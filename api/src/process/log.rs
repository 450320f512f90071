//! The library's log: one line per record on standard error. The library logs what a guest can cause once for
//! each stop of a device.

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
            eprintln!("volt-vmm: {}", record.args());
        }
    }

    fn flush(&self) {}
}
