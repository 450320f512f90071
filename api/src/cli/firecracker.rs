//! The command line of Firecracker, for its clients. A program of the name `firecracker` has no other.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgGroup, Parser};
use volt_vmm::snapshot;
use volt_vmm::{Error, MetadataStore, VmShape};

use super::config_file::ConfigFile;
use super::confine::ConfineArgs;
use super::empty::Empty;
use super::parsed::{WIDTH, parsed};
use super::run::boot;
use super::{Outcome, prewarm};
use crate::failure::Failure;
use crate::process::exit::Status;
use crate::process::log;
use crate::process::vm_slot::DEFAULT_ID;
use crate::rest::{API_VERSION, ApiOptions, FlushedMetrics, LogLevel, Logger, MetricsFile, Startup};

/// Options that only Firecracker has. One of them tells its command line from volt-vmm's.
const ITS_OWN: [&str; 19] = [
    "--api-sock",
    "--boot-timer",
    "--config-file",
    "--describe-snapshot",
    "--enable-pci",
    "--http-api-max-payload-size",
    "--level",
    "--log-path",
    "--metadata",
    "--metrics-path",
    "--mmds-size-limit",
    "--module",
    "--no-api",
    "--parent-cpu-time-us",
    "--show-level",
    "--show-log-origin",
    "--snapshot-version",
    "--start-time-cpu-us",
    "--start-time-us",
];

const NO_PCI: &str = "volt-vmm has no PCI; its devices are on MMIO";

/// Start with the options of Firecracker: wait for a client of its API, or boot the VM of its configuration
/// file. A guest's reboot ends with status 0
#[derive(Debug, Parser)]
#[command(
    name = "firecracker",
    max_term_width = WIDTH,
    disable_version_flag = true,
    group = ArgGroup::new("question").multiple(false),
)]
pub(crate) struct Firecracker {
    /// Unix socket of the API
    #[arg(long, value_name = "SOCKET", default_value = SOCKET)]
    api_sock: PathBuf,

    /// Name of the VM
    #[arg(long, value_name = "NAME", default_value = DEFAULT_ID)]
    id: String,

    /// Boot the VM of this configuration file, in Firecracker's form
    #[arg(long, value_name = "PATH")]
    config_file: Option<PathBuf>,

    /// Serve no API
    #[arg(long, requires = "config_file")]
    no_api: bool,

    /// Longest body of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = LONGEST_BODY)]
    http_api_max_payload_size: usize,

    /// Print the version of Firecracker's API that this program follows
    #[arg(long, group = "question")]
    version: bool,

    /// Print the version of snapshots that this program writes
    #[arg(long, group = "question")]
    snapshot_version: bool,

    /// Print the version of a snapshot's state file
    #[arg(long, value_name = "PATH", group = "question")]
    describe_snapshot: Option<PathBuf>,

    /// Time of the start, by the monotonic clock, in microseconds
    #[arg(long, value_name = "MICROSECONDS")]
    start_time_us: Option<u64>,

    /// Processor time at the start, in microseconds
    #[arg(long, value_name = "MICROSECONDS")]
    start_time_cpu_us: Option<u64>,

    /// Processor time of the jailer, in microseconds
    #[arg(long, value_name = "MICROSECONDS")]
    parent_cpu_time_us: Option<u64>,

    /// Append the log to this file or FIFO
    #[arg(long, value_name = "PATH")]
    log_path: Option<PathBuf>,

    /// Level of the log: Error, Warning, Info, Debug, Trace or Off
    #[arg(long)]
    level: Option<LogLevel>,

    /// Keep the log of modules that begin so
    #[arg(long)]
    module: Option<String>,

    /// Log levels too
    #[arg(long)]
    show_level: bool,

    /// Log lines of the source too
    #[arg(long)]
    show_log_origin: bool,

    /// Not supported
    #[arg(
        long,
        value_parser = refuse(NO_PCI),
        num_args = 0..=1,
        value_name = "",
        default_missing_value = "",
    )]
    enable_pci: Option<String>,

    /// Log the time of the boot when the guest writes 123 to 0xc0000000
    #[arg(long)]
    boot_timer: bool,

    /// Append a line of metrics to this file or FIFO every minute
    #[arg(long, value_name = "PATH")]
    metrics_path: Option<PathBuf>,

    /// Give the metadata service the JSON of this file
    #[arg(long, value_name = "PATH")]
    metadata: Option<PathBuf>,

    /// Most bytes of metadata [default: the longest body of a request]
    #[arg(long, value_name = "BYTES")]
    mmds_size_limit: Option<usize>,

    /// Create an empty VM of this shape ahead of /snapshot/load, as for volt-vmm
    #[arg(long, value_name = "SHAPE", value_parser = prewarm::parse, conflicts_with = "config_file")]
    prewarm: Option<VmShape>,

    /// With --confine strict: let the process use files in this directory. Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,

    #[command(flatten)]
    confine: ConfineArgs,
}

/// Firecracker's defaults.
const SOCKET: &str = "/run/firecracker.socket";
const LONGEST_BODY: usize = 51_200;

/// The name of Firecracker's program, which may have a version after it.
const PROGRAM: &str = "firecracker";

impl Firecracker {
    /// Whether a command line is Firecracker's, by the name of the program, which is the first argument, or
    /// by an option.
    pub(super) fn recognizes(arguments: &[OsString]) -> bool {
        let Some((program, options)) = arguments.split_first() else { return false };
        let name = Path::new(program).file_name().map(OsStr::as_encoded_bytes).unwrap_or_default();
        let has_its_own = || {
            let options = options.iter().take_while(|option| *option != "--");
            options.filter_map(|option| option.to_str()).any(|option| {
                let name = option.split_once('=').map_or(option, |(name, _)| name);
                ITS_OWN.contains(&name)
            })
        };
        let has_command = || options.first().is_some_and(|first| !first.as_encoded_bytes().starts_with(b"-"));
        name.starts_with(PROGRAM.as_bytes()) || (!has_command() && has_its_own())
    }

    /// Parses a command line, whose first argument is the program. Ends the process after an error or help.
    ///
    /// Clients pass a socket and a name, if anything. These are parsed without clap, whose set-up would be a
    /// tenth of the time to the first answer. Clap would parse them to the same command.
    pub(super) fn parse_line(arguments: Vec<OsString>) -> Self {
        Self::plain(&arguments).unwrap_or_else(|| parsed(arguments))
    }

    /// A command line that has no options but a socket and a name, each once at most.
    fn plain(arguments: &[OsString]) -> Option<Self> {
        let (mut api_sock, mut id) = (None, None);
        let (pairs, []) = arguments.get(1..)?.as_chunks() else { return None };
        for [option, value] in pairs {
            let value = value.to_str().filter(|value| !value.is_empty() && !value.starts_with('-'))?;
            let place = match option.to_str()? {
                "--api-sock" => &mut api_sock,
                "--id" => &mut id,
                _ => return None,
            };
            if place.replace(value).is_some() {
                return None;
            }
        }
        Some(Self {
            api_sock: api_sock.unwrap_or(SOCKET).into(),
            id: id.unwrap_or(DEFAULT_ID).to_owned(),
            config_file: None,
            no_api: false,
            http_api_max_payload_size: LONGEST_BODY,
            version: false,
            snapshot_version: false,
            describe_snapshot: None,
            start_time_us: None,
            start_time_cpu_us: None,
            parent_cpu_time_us: None,
            log_path: None,
            level: None,
            module: None,
            show_level: false,
            show_log_origin: false,
            enable_pci: None,
            boot_timer: false,
            metrics_path: None,
            metadata: None,
            mmds_size_limit: None,
            prewarm: None,
            allowed: Vec::new(),
            confine: ConfineArgs::default(),
        })
    }

    pub(crate) fn execute(self) -> Outcome {
        if let Some(answer) = self.answer()? {
            println!("{answer}");
            return Ok(Status::Success);
        }
        let status = self.start()?;
        // Firecracker's guests end by a reboot.
        Ok(if matches!(status, Status::Reboot | Status::Panicked) { Status::Success } else { status })
    }

    /// The answer to an option that asks for a version.
    fn answer(&self) -> Result<Option<String>, Failure> {
        let version = |version: u32| format!("v{version}.0.0");
        if self.version {
            let own = env!("CARGO_PKG_VERSION");
            return Ok(Some(format!(
                "Firecracker v{API_VERSION}\n\nby volt-vmm {own}, which follows its API"
            )));
        }
        if self.snapshot_version {
            return Ok(Some(version(snapshot::VERSION)));
        }
        Ok(self.describe_snapshot.as_deref().map(snapshot::version_of).transpose()?.map(version))
    }

    /// The log, if an option says how.
    fn logger(&self) -> Option<Logger> {
        let logger = Logger {
            log_path: self.log_path.clone(),
            level: self.level,
            show_level: self.show_level.then_some(true),
            show_log_origin: self.show_log_origin.then_some(true),
            module: self.module.clone(),
        };
        (logger != Logger::default()).then_some(logger)
    }

    /// The metadata before the first request.
    fn stored_metadata(&self) -> Result<MetadataStore, Failure> {
        let store = MetadataStore::new(self.mmds_size_limit.unwrap_or(self.http_api_max_payload_size));
        if let Some(path) = &self.metadata {
            let name = path.display();
            let text = std::fs::read(path).map_err(|source| Error::File {
                act: "read metadata",
                name: name.to_string(),
                source,
            })?;
            let content = serde_json::from_slice(&text).map_err(|error| Error::Config {
                field: "--metadata",
                problem: format!("{name}: {error}").into(),
            })?;
            store.put(content)?;
        }
        Ok(store)
    }

    fn start(self) -> Outcome {
        let (logger, metadata) = (self.logger(), self.stored_metadata()?);
        let longest_body = self.http_api_max_payload_size;
        let mut options = ApiOptions { longest_body, metadata, ..ApiOptions::default() };
        let startup = Startup::measured(self.start_time_us, self.start_time_cpu_us, self.parent_cpu_time_us);
        options.metrics = Some(Arc::new(FlushedMetrics::started(startup)));
        let metrics = self.metrics_path.map(|metrics_path| MetricsFile { metrics_path });
        let api_socket = (!self.no_api).then_some(self.api_sock);
        let Some(path) = self.config_file else {
            logger.clone().map_or(Ok(()), |logger| log::change(&self.id, logger.into()))?;
            let (Some(api_socket), id) = (api_socket, Some(self.id)) else {
                unreachable!("clap requires a configuration file with --no-api")
            };
            (options.draft.logger, options.draft.metrics) = (logger, metrics);
            options.draft.boot_timer = self.boot_timer;
            options.open_metrics()?;
            let Self { prewarm, allowed, confine, .. } = self;
            return Empty { api_socket, id, prewarm, allowed, confine, options }.execute();
        };
        let mut config = match ConfigFile::read(&path)? {
            ConfigFile::Own(config) => config,
            ConfigFile::Firecracker(draft) => {
                options.draft = draft;
                options.draft.config().unwrap_or_else(|| unreachable!("a file has a boot source"))
            }
        };
        (config.boot_timer, options.draft.boot_timer) = (self.boot_timer, self.boot_timer);
        config.devices.set_metadata_store(&options.metadata);
        // Those of the file count, as in Firecracker.
        options.draft.logger = match (logger, options.draft.logger.take()) {
            (Some(given), Some(of_file)) => Some(given.with(of_file)),
            (given, of_file) => given.or(of_file),
        };
        options.draft.metrics = match (metrics, options.draft.metrics.take()) {
            (Some(_), Some(_)) => {
                let problem = "metrics: Reinitialization of metrics not allowed; leave out --metrics-path";
                return Err(Failure::FirecrackersConfigFile { path, problem: problem.to_owned() });
            }
            (given, of_file) => given.or(of_file),
        };
        boot(config, &self.allowed, self.confine, api_socket.as_deref(), Some(self.id), options, None)
    }
}

/// Refuses an option of Firecracker.
fn refuse(why: &'static str) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |_| Err(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn parse(line: &str) -> Result<Firecracker, String> {
        Firecracker::try_parse_from(words(line)).map_err(|error| error.to_string())
    }

    #[test]
    fn command_line_is_recognized_by_program_or_option() {
        for line in [
            "firecracker",
            "/usr/bin/firecracker --version",
            "/jail/firecracker-v1.17.0-x86_64 --id a --api-sock /a",
            "volt-vmm --api-sock /a",
            "volt-vmm --id a --start-time-us=5",
            "volt-vmm --no-api --config-file /c",
        ] {
            assert!(Firecracker::recognizes(&words(line)), "{line}");
        }
        for line in [
            "volt-vmm",
            "volt-vmm --api-socket /a",
            "volt-vmm run --config-file /c",
            "volt-vmm --restore /s -- --api-sock",
            "volt-vmm --version",
        ] {
            assert!(!Firecracker::recognizes(&words(line)), "{line}");
        }
    }

    #[test]
    fn every_option_that_tells_the_command_line_is_one() {
        for option in ITS_OWN {
            let known = parse(&format!("firecracker {option}")).map(drop).err().unwrap_or_default();
            assert!(!known.contains("unexpected argument"), "{option}: {known}");
        }
    }

    #[test]
    fn plain_command_line_is_parsed_as_by_clap() {
        for line in [
            "firecracker",
            "firecracker --api-sock /a",
            "firecracker --id a --api-sock /a",
            "firecracker --api-sock /a --id a",
        ] {
            let plain = Firecracker::plain(&words(line)).unwrap();
            assert_eq!(format!("{plain:?}"), format!("{:?}", parse(line).unwrap()), "{line}");
        }
        for line in [
            "firecracker --id",
            "firecracker --id a --id b",
            "firecracker --id --api-sock",
            "firecracker --id=a",
            "firecracker --version",
            "firecracker --api-sock /a --level Info",
            "firecracker --id a --",
        ] {
            assert!(Firecracker::plain(&words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn defaults_are_firecrackers() {
        let command = parse("firecracker").unwrap();
        assert_eq!(command.api_sock, PathBuf::from("/run/firecracker.socket"));
        assert_eq!((&*command.id, command.http_api_max_payload_size), ("anonymous-instance", 51_200));
    }

    #[test]
    fn invalid_options_are_refused_by_name() {
        for (line, words) in [
            ("firecracker --no-api", "--config-file"),
            ("firecracker --enable-pci", "no PCI"),
            ("firecracker --no-seccomp --seccomp-filter /f", "--seccomp-filter"),
            ("firecracker --http-api-max-payload-size many", "--http-api-max-payload-size"),
            ("firecracker --version --snapshot-version", "cannot be used with"),
            ("firecracker --mmds-size-limit many", "--mmds-size-limit"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn metadata_comes_from_its_file_within_the_limit() {
        let file = Dir::new().path("missing");
        let stored = |options: &str| {
            parse(&format!("firecracker --no-api --config-file /c{options}")).unwrap().stored_metadata()
        };
        assert_eq!(stored("").unwrap().content(), None);
        let missing = stored(&format!(" --metadata {}", file.display())).unwrap_err();
        let words = format!("cannot read metadata {}: No such file", file.display());
        assert!(volt_vmm::report(&missing).starts_with(&words), "{missing}");
        let dir = Dir::new();
        let file = dir.path("metadata.json");
        let option = format!(" --metadata {}", file.display());
        std::fs::write(&file, r#"{"a":"0123456789"}"#).unwrap();
        assert_eq!(stored(&option).unwrap().content(), Some(serde_json::json!({"a": "0123456789"})));
        for limit in ["--mmds-size-limit 17", "--http-api-max-payload-size 17"] {
            let error = stored(&format!("{option} {limit}")).unwrap_err().to_string();
            assert!(error.contains("18 bytes exceeds the limit of 17 bytes"), "{error}");
        }
        stored(&format!("{option} --mmds-size-limit 18 --http-api-max-payload-size 1")).unwrap();
        std::fs::write(&file, "{").unwrap();
        let error = stored(&option).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--metadata: {}: EOF", file.display())), "{error}");
    }

    #[test]
    fn versions_are_printed_as_clients_read_them() {
        let answer = |line: &str| parse(line).unwrap().answer().unwrap().unwrap();
        assert_eq!(answer("firecracker --version").lines().next(), Some("Firecracker v1.17.0"));
        assert_eq!(answer("firecracker --snapshot-version"), format!("v{}.0.0", snapshot::VERSION));
        let missing = parse("firecracker --describe-snapshot /missing").unwrap().answer().unwrap_err();
        assert!(volt_vmm::report(&missing).contains("/missing"));
    }
}
