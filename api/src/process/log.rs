//! The log of the library and of this program: lines on standard error, or in Firecracker's layout in a file.
//!
//! ```text
//!   volt-vmm: MESSAGE                                              standard error
//!   2026-11-26T12:00:00.123456789 [ID:THREAD:LEVEL:FILE:LINE] MESSAGE       a file or FIFO
//! ```
//!
//! The library logs what a guest can cause once for each stop of a device.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use log::{LevelFilter, Log, Metadata, Record};
use rustix::fs::OFlags;
use volt_vmm::Error;
use volt_vmm::internal::paths;

/// See the module.
#[derive(Debug)]
struct ProcessLog {
    settings: RwLock<Settings>,
}

#[derive(Debug)]
struct Settings {
    /// Name of the VM.
    id: String,
    level: LevelFilter,
    shows_level: bool,
    shows_origin: bool,
    /// Start of the modules whose records are kept.
    module: Option<String>,
    /// Standard error gets the lines otherwise.
    file: Option<File>,
}

static LOG: ProcessLog = ProcessLog {
    settings: RwLock::new(Settings {
        id: String::new(),
        level: LevelFilter::Warn,
        shows_level: false,
        shows_origin: false,
        module: None,
        file: None,
    }),
};

/// A change of the log. A setting that is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogChange {
    /// A file or FIFO to append to. It is created if it is missing.
    pub(crate) path: Option<PathBuf>,
    pub(crate) level: Option<LevelFilter>,
    pub(crate) shows_level: Option<bool>,
    pub(crate) shows_origin: Option<bool>,
    pub(crate) module: Option<String>,
}

/// Starts to print the warnings and errors of this project's crates.
pub(crate) fn start() {
    if log::set_logger(&LOG).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

/// Changes the log of the VM `id`.
///
/// # Errors
/// The file cannot be opened. Then nothing changes.
pub(crate) fn change(id: &str, change: LogChange) -> volt_vmm::Result<()> {
    let LogChange { path, level, shows_level, shows_origin, module } = change;
    let file = path.as_deref().map(open).transpose()?;
    let mut settings = LOG.settings.write().unwrap_or_else(PoisonError::into_inner);
    id.clone_into(&mut settings.id);
    // Firecracker's default level, for a file that was asked for.
    let level = level.or(file.as_ref().map(|_| LevelFilter::Info));
    settings.level = level.unwrap_or(settings.level);
    settings.shows_level = shows_level.unwrap_or(settings.shows_level);
    settings.shows_origin = shows_origin.unwrap_or(settings.shows_origin);
    settings.module = module.or_else(|| settings.module.take());
    settings.file = file.or_else(|| settings.file.take());
    log::set_max_level(settings.level);
    Ok(())
}

/// Opens a file or FIFO. Neither this nor a write waits for a FIFO's reader.
fn open(path: &Path) -> volt_vmm::Result<File> {
    // A FIFO that is opened for reading too needs no reader.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY;
    let failed = |source| Error::File { act: "open log", name: path.display().to_string(), source };
    paths::open(path, flags, 0o600).map_err(failed)
}

impl Settings {
    fn keeps(&self, metadata: &Metadata<'_>) -> bool {
        let module = self.module.as_deref().unwrap_or_default();
        metadata.level() <= self.level && metadata.target().starts_with(module)
    }

    /// A line of a file.
    fn line(&self, record: &Record<'_>, now: SystemTime) -> String {
        let time = humantime::format_rfc3339_nanos(now).to_string();
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("-");
        let mut line = format!("{} [{}:{thread}", time.trim_end_matches('Z'), self.id);
        if self.shows_level {
            let _ = write!(line, ":{}", record.level());
        }
        if self.shows_origin {
            let (file, number) = (record.file().unwrap_or("?"), record.line().unwrap_or(0));
            let _ = write!(line, ":{file}:{number}");
        }
        let _ = writeln!(line, "] {}", record.args());
        line
    }
}

impl Log for ProcessLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // virtio-queue logs each invalid access of a guest, so a guest could flood the log.
        metadata.target().starts_with("volt_")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        if !settings.keeps(record.metadata()) {
            return;
        }
        // In one piece, so that lines of several threads do not mix. A line that cannot be written is lost.
        let _ = match &settings.file {
            Some(file) => (&*file).write_all(settings.line(record, SystemTime::now()).as_bytes()),
            None => io::stderr().write_all(format!("volt-vmm: {}\n", record.args()).as_bytes()),
        };
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use log::Level;

    use super::*;

    fn settings(module: Option<&str>) -> Settings {
        Settings {
            id: "vm-1".to_owned(),
            level: LevelFilter::Info,
            shows_level: true,
            shows_origin: true,
            module: module.map(str::to_owned),
            file: None,
        }
    }

    #[test]
    fn line_has_firecrackers_layout() {
        let now = UNIX_EPOCH + Duration::new(1_543_416_019, 5);
        let of = |settings: &Settings| {
            let args = format_args!("a message");
            let mut record = Record::builder();
            let record = record.level(Level::Warn).file(Some("src/lib.rs")).line(Some(45)).args(args);
            settings.line(&record.build(), now)
        };
        let thread = std::thread::current().name().unwrap().to_owned();
        let start = format!("2018-11-28T14:40:19.000000005 [vm-1:{thread}");
        assert_eq!(of(&settings(None)), format!("{start}:WARN:src/lib.rs:45] a message\n"));
        let plain = Settings { shows_level: false, shows_origin: false, ..settings(None) };
        assert_eq!(of(&plain), format!("{start}] a message\n"));
    }

    #[test]
    fn level_and_module_choose_records() {
        let keeps = |settings: Settings, level, target: &str| {
            settings.keeps(&Metadata::builder().level(level).target(target).build())
        };
        assert!(keeps(settings(None), Level::Info, "volt_vmm::vm"));
        assert!(!keeps(settings(None), Level::Debug, "volt_vmm::vm"));
        assert!(keeps(settings(Some("volt_vmm::vm")), Level::Info, "volt_vmm::vm"));
        assert!(!keeps(settings(Some("volt_vmm::vm")), Level::Info, "volt_vmm::snapshot"));
    }
}
