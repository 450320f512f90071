//! The command line of Firecracker, for its clients. A program of the name `firecracker` has no other.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use volt_vmm::VmShape;
use volt_vmm::snapshot;

use super::config_file::ConfigFile;
use super::confine::ConfineArgs;
use super::empty::Empty;
use super::run::boot;
use super::{Outcome, prewarm};
use crate::failure::Failure;
use crate::process::exit::Status;
use crate::process::log;
use crate::process::vm_slot::DEFAULT_ID;
use crate::rest::{API_VERSION, ApiOptions, LogLevel, Logger};

/// Options that only Firecracker has. One of them tells its command line from volt-vmm's.
const ITS_OWN: [&str; 18] = [
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
    "--start-time-cpu-us",
    "--start-time-us",
];

const NO_PCI: &str = "volt-vmm has no PCI; its devices are on MMIO";
const NO_BOOT_TIMER: &str = "volt-vmm has no boot timer; leave it out";
const NO_METRICS: &str = "volt-vmm writes no metrics in Firecracker's form; leave it out";
const NO_MMDS: &str = "volt-vmm has no metadata service; leave it out";

/// Start with the options of Firecracker: wait for a client of its API, or boot the VM of its configuration
/// file. A guest's reboot ends with status 0
#[derive(Debug, Args)]
#[command(disable_version_flag = true, group = ArgGroup::new("question").multiple(false))]
pub(crate) struct Firecracker {
    /// Unix socket of the API
    #[arg(long, value_name = "SOCKET", default_value = "/run/firecracker.socket")]
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
    #[arg(long, value_name = "BYTES", default_value_t = 51_200)]
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

    /// Not supported
    #[arg(
        long,
        value_parser = refuse(NO_BOOT_TIMER),
        num_args = 0..=1,
        value_name = "",
        default_missing_value = "",
    )]
    boot_timer: Option<String>,

    /// Not supported
    #[arg(long, value_parser = refuse(NO_METRICS), value_name = "PATH")]
    metrics_path: Option<String>,

    /// Not supported
    #[arg(long, value_parser = refuse(NO_MMDS), value_name = "PATH")]
    metadata: Option<String>,

    /// Not supported
    #[arg(long, value_parser = refuse(NO_MMDS), value_name = "BYTES")]
    mmds_size_limit: Option<String>,

    /// Create an empty VM of this shape ahead of /snapshot/load, as for volt-vmm
    #[arg(long, value_name = "SHAPE", value_parser = prewarm::parse, conflicts_with = "config_file")]
    prewarm: Option<VmShape>,

    /// With --confine strict: let the process use files in this directory. Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,

    #[command(flatten)]
    confine: ConfineArgs,
}

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

    pub(crate) fn execute(self) -> Outcome {
        if let Some(answer) = self.answer()? {
            println!("{answer}");
            return Ok(Status::Success);
        }
        let status = self.start()?;
        // Firecracker's guests end by a reboot.
        Ok(if status == Status::Reboot { Status::Success } else { status })
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

    fn start(self) -> Outcome {
        let logger = self.logger();
        let mut options =
            ApiOptions { longest_body: self.http_api_max_payload_size, ..ApiOptions::default() };
        let api_socket = (!self.no_api).then_some(self.api_sock);
        let Some(path) = self.config_file else {
            logger.clone().map_or(Ok(()), |logger| log::change(&self.id, logger.into()))?;
            let (Some(api_socket), id) = (api_socket, Some(self.id)) else {
                unreachable!("clap requires a configuration file with --no-api")
            };
            options.draft.logger = logger;
            let Self { prewarm, allowed, confine, .. } = self;
            return Empty { api_socket, id, prewarm, allowed, confine, options }.execute();
        };
        let config = match ConfigFile::read(&path)? {
            ConfigFile::Own(config) => config,
            ConfigFile::Firecracker(draft) => {
                options.draft = draft;
                options.draft.config().unwrap_or_else(|| unreachable!("a file has a boot source"))
            }
        };
        // Those of the file count, as in Firecracker.
        options.draft.logger = match (logger, options.draft.logger.take()) {
            (Some(given), Some(of_file)) => Some(given.with(of_file)),
            (given, of_file) => given.or(of_file),
        };
        boot(config, &self.allowed, self.confine, api_socket.as_deref(), Some(self.id), options)
    }
}

/// Refuses an option of Firecracker.
fn refuse(why: &'static str) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |_| Err(why.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        command: Firecracker,
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn parse(line: &str) -> Result<Firecracker, String> {
        Line::try_parse_from(words(line)).map(|line| line.command).map_err(|error| error.to_string())
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
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
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
