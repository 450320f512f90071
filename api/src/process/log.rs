//! The log of the library and of this program: lines on standard error, in a file or FIFO, or records of the
//! journal.
//!
//! ```text
//!   Plain        volt-vmm: MESSAGE
//!   Text         2026-11-26T12:00:00.123456Z WARN [ID] MESSAGE
//!   Json         {"timestamp":"2026-11-26T12:00:00.123456Z","level":"warn","vm":"ID","target":…,"message":…}
//!   Firecracker  2026-11-26T12:00:00.123456789 [ID:THREAD:LEVEL:FILE:LINE] MESSAGE
//! ```
//!
//! The library logs what a guest can cause once for each stop of a device.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use log::{LevelFilter, Log, Metadata, Record};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::process::lines::LineFile;
use crate::process::{journal, output_file};

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
    layout: Layout,
    shows_level: bool,
    shows_origin: bool,
    /// Start of the modules whose records are kept.
    module: Option<String>,
    sink: Sink,
    /// The changes that led here.
    chosen: LogChange,
}

/// Receiver of the log.
#[derive(Debug)]
enum Sink {
    Stderr,
    Lines(Mutex<LineFile>),
    /// A connection to the journal.
    Journal(File),
}

/// Layout of a line. The journal has a layout of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Layout {
    Plain,
    Text,
    Json,
    Firecracker,
}

/// Choice of the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogTo {
    Stderr,
    /// A file or FIFO to append to. It is created if it is missing.
    File(PathBuf),
    Journal,
}

static LOG: ProcessLog = ProcessLog {
    settings: RwLock::new(Settings {
        id: String::new(),
        level: LevelFilter::Warn,
        layout: Layout::Plain,
        shows_level: false,
        shows_origin: false,
        module: None,
        sink: Sink::Stderr,
        chosen: LogChange::NONE,
    }),
};

/// Lines that could not be written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lines that could not be written.
pub(crate) fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// A change of the log. A setting that is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogChange {
    pub(crate) to: Option<LogTo>,
    pub(crate) layout: Option<Layout>,
    #[serde(with = "level_as_text")]
    pub(crate) level: Option<LevelFilter>,
    /// The level, if no change asked for one.
    #[serde(with = "level_as_text")]
    pub(crate) usual_level: Option<LevelFilter>,
    pub(crate) shows_level: Option<bool>,
    pub(crate) shows_origin: Option<bool>,
    pub(crate) module: Option<String>,
}

impl LogChange {
    const NONE: Self = Self {
        to: None,
        layout: None,
        level: None,
        usual_level: None,
        shows_level: None,
        shows_origin: None,
        module: None,
    };

    /// This change after an earlier one.
    fn after(self, earlier: &Self) -> Self {
        let earlier = earlier.clone();
        Self {
            to: self.to.or(earlier.to),
            layout: self.layout.or(earlier.layout),
            level: self.level.or(earlier.level),
            usual_level: self.usual_level.or(earlier.usual_level),
            shows_level: self.shows_level.or(earlier.shows_level),
            shows_origin: self.shows_origin.or(earlier.shows_origin),
            module: self.module.or(earlier.module),
        }
    }
}

/// A level in JSON.
mod level_as_text {
    use log::LevelFilter;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(level: &Option<LevelFilter>, to: S) -> Result<S::Ok, S::Error> {
        level.as_ref().map(LevelFilter::as_str).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<LevelFilter>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// Returns all changes of the log in one, with an absolute path, for a process that is to have the same log.
/// A file that it would not find by the path's text is left out.
pub(crate) fn chosen() -> LogChange {
    let mut chosen = LOG.settings.read().unwrap_or_else(PoisonError::into_inner).chosen.clone();
    chosen.to = chosen.to.and_then(LogTo::for_another_process);
    chosen
}

impl LogTo {
    fn for_another_process(self) -> Option<Self> {
        let Self::File(path) = self else { return Some(self) };
        let path = std::path::absolute(path).ok().filter(|path| path.to_str().is_some())?;
        // Descriptors of this process.
        let is_own =
            ["/proc", "/dev/fd", "/dev/stdout", "/dev/stderr"].iter().any(|own| path.starts_with(own));
        (!is_own).then_some(Self::File(path))
    }
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
/// As [`LogChange::open`].
pub(crate) fn change(id: &str, change: LogChange) -> volt_vmm::Result<()> {
    change.open().map(|opened| opened.apply(id))
}

/// A change of the log whose receiver is open.
pub(crate) struct OpenedChange {
    change: LogChange,
    sink: Option<Sink>,
}

impl LogChange {
    /// Opens the receiver, which may take long.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open(self) -> volt_vmm::Result<OpenedChange> {
        let sink = self.to.clone().map(open).transpose()?;
        Ok(OpenedChange { change: self, sink })
    }
}

impl OpenedChange {
    /// Changes the log of the VM `id`.
    pub(crate) fn apply(self, id: &str) {
        let mut settings = LOG.settings.write().unwrap_or_else(PoisonError::into_inner);
        id.clone_into(&mut settings.id);
        settings.take(self.change);
        if let Some(sink) = self.sink {
            settings.sink = sink;
        }
        log::set_max_level(settings.level);
    }
}

fn open(to: LogTo) -> volt_vmm::Result<Sink> {
    Ok(match to {
        LogTo::Stderr => Sink::Stderr,
        LogTo::File(path) => Sink::Lines(Mutex::new(LineFile::new(output_file::open("open log", &path)?))),
        LogTo::Journal => Sink::Journal(journal::connect()?),
    })
}

impl Settings {
    /// Takes over all of a change but the receiver.
    fn take(&mut self, change: LogChange) {
        let usual = change.usual_level.filter(|_| self.chosen.level.is_none());
        self.chosen = change.clone().after(&self.chosen);
        let LogChange { to: _, layout, level, usual_level: _, shows_level, shows_origin, module } = change;
        self.level = level.or(usual).unwrap_or(self.level);
        self.layout = layout.unwrap_or(self.layout);
        self.shows_level = shows_level.unwrap_or(self.shows_level);
        self.shows_origin = shows_origin.unwrap_or(self.shows_origin);
        self.module = module.or_else(|| self.module.take());
    }

    fn keeps(&self, metadata: &Metadata<'_>) -> bool {
        let module = self.module.as_deref().unwrap_or_default();
        metadata.level() <= self.level && metadata.target().starts_with(module)
    }

    /// The line of a record.
    fn line(&self, record: &Record<'_>, now: SystemTime) -> String {
        let time = || humantime::format_rfc3339_micros(now);
        match self.layout {
            Layout::Plain => format!("volt-vmm: {}\n", record.args()),
            Layout::Text => format!("{} {} [{}] {}\n", time(), record.level(), self.id, record.args()),
            Layout::Json => {
                let fields = json!({
                    "timestamp": time().to_string(),
                    "level": record.level().as_str().to_ascii_lowercase(),
                    "vm": self.id,
                    "target": record.target(),
                    "message": record.args().to_string(),
                });
                format!("{fields}\n")
            }
            Layout::Firecracker => self.line_of_firecracker(record, now),
        }
    }

    fn line_of_firecracker(&self, record: &Record<'_>, now: SystemTime) -> String {
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
        let line = || settings.line(record, SystemTime::now());
        let written = match &settings.sink {
            Sink::Stderr => io::stderr().write_all(line().as_bytes()),
            Sink::Lines(lines) => {
                let line = line();
                lines.lock().unwrap_or_else(PoisonError::into_inner).write(line.as_bytes())
            }
            Sink::Journal(journal) => (&*journal).write_all(&journal::datagram(&settings.id, record)),
        };
        if written.is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
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
            layout: Layout::Firecracker,
            shows_level: true,
            shows_origin: true,
            module: module.map(str::to_owned),
            sink: Sink::Stderr,
            chosen: LogChange::NONE,
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
    fn own_layouts_have_time_level_and_name_of_the_vm() {
        let now = UNIX_EPOCH + Duration::new(1_543_416_019, 5_000);
        let of = |layout| {
            let args = format_args!("a \"message\"\nof two lines");
            let record = Record::builder().level(Level::Warn).target("volt_vmm").args(args).build();
            Settings { layout, ..settings(None) }.line(&record, now)
        };
        assert_eq!(of(Layout::Plain), "volt-vmm: a \"message\"\nof two lines\n");
        let text = "2018-11-28T14:40:19.000005Z WARN [vm-1] a \"message\"\nof two lines\n";
        assert_eq!(of(Layout::Text), text);
        let json = of(Layout::Json);
        assert_eq!(json.lines().count(), 1, "{json}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            json,
            json!({
                "timestamp": "2018-11-28T14:40:19.000005Z", "level": "warn", "vm": "vm-1",
                "target": "volt_vmm", "message": "a \"message\"\nof two lines",
            })
        );
    }

    #[test]
    fn file_of_another_process_has_a_path_that_it_finds() {
        use std::os::unix::ffi::OsStrExt;
        let handed_on = |path: &[u8]| {
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
            LogTo::File(path).for_another_process()
        };
        assert_eq!(handed_on(b"/var/log/vm"), Some(LogTo::File("/var/log/vm".into())));
        assert!(matches!(handed_on(b"vm"), Some(LogTo::File(path)) if path.is_absolute()));
        for own in [&b"/dev/fd/63"[..], b"/proc/self/fd/3", b"/dev/stderr", b"/var/log/\xff"] {
            assert_eq!(handed_on(own), None, "{own:?}");
        }
        assert_eq!(LogTo::Journal.for_another_process(), Some(LogTo::Journal));
    }

    #[test]
    fn changes_add_up_and_are_handed_on_as_json() {
        let first = LogChange { to: Some(LogTo::Journal), level: Some(LevelFilter::Off), ..LogChange::NONE };
        let level = Some(LevelFilter::Info);
        let then = LogChange { level, layout: Some(Layout::Json), ..LogChange::NONE };
        let both = LogChange { to: Some(LogTo::Journal), ..then.clone() };
        assert_eq!(then.after(&first), both);
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<LogChange>(&text).unwrap(), both, "{text}");
    }

    #[test]
    fn usual_level_counts_until_another_was_chosen() {
        let mut settings = Settings { level: LevelFilter::Warn, ..settings(None) };
        let usual = LogChange { usual_level: Some(LevelFilter::Info), ..LogChange::default() };
        let chosen = LogChange { level: Some(LevelFilter::Trace), ..usual.clone() };
        let levels = [LogChange::default(), usual.clone(), chosen, usual].map(|change| {
            settings.take(change);
            settings.level
        });
        assert_eq!(levels, [LevelFilter::Warn, LevelFilter::Info, LevelFilter::Trace, LevelFilter::Trace]);
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
