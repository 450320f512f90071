//! The library's log, a line each on standard error. What a guest can cause is said once for each time that a device stops.

use log::{Level, LevelFilter, Log, Metadata, Record};

struct Lines;

static LINES: Lines = Lines;

/// From here on warnings and errors of this project's own crates are printed.
pub(crate) fn start() {
    if log::set_logger(&LINES).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // virtio-queue logs what a guest does wrong at each access, as loudly as the guest likes.
        metadata.level() <= Level::Warn && metadata.target().starts_with("volt_")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("volt-vmm: {}", record.args());
        }
    }

    fn flush(&self) {}
}
