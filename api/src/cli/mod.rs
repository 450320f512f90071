//! The command line. Each subcommand is a struct in its own file, with `execute(self)`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use volt_vmm::VmShape;

use crate::failure::Failure;
use crate::process::child_command::FORKED;
use crate::process::exit::Status;
use crate::process::vm_slot::DEFAULT_ID;
use crate::rest::ApiOptions;

mod attached_volumes;
mod bench;
mod complete;
mod completion;
mod config_file;
mod confine;
mod cpu;
mod device_help;
mod devices;
mod doctor;
mod empty;
mod empty_disk;
mod environment;
mod firecracker;
mod followed;
mod fork;
mod forked;
mod image_intake;
mod image_options;
mod image_place;
mod image_vm;
mod images;
mod jailer;
mod key_values;
mod limits;
mod list_options;
mod log_options;
mod main_streams;
mod man;
mod metrics;
mod overrides;
mod packing;
mod pager;
mod parsed;
mod policy;
mod prewarm;
mod restore;
mod rewind;
mod run;
mod security;
mod snapshot_place;
mod snapshots;
mod unpack;
mod vms;
mod volume_place;
mod volumes;
mod working_set;

use confine::ConfineArgs;
use firecracker::Firecracker;
use log_options::LogArgs;
use parsed::parsed;
use vms::{attach, copy, events, exec, inspect, logs, pause, port_forward, ps, rm, stats, stop, wait};

type Outcome = Result<Status, Failure>;

const EXAMPLES: &str = "\
Examples:
  Check whether this host can run VMs, and how fast:
      volt-vmm doctor
  Boot Linux under a name; its console is this terminal (Ctrl-A D leaves it, Ctrl-A X ends the VM):
      volt-vmm run --name web --kernel vmlinux --disk rootfs.img --memory 512M --vcpus 2
  List VMs, print the serial output of one, and return to its console:
      volt-vmm ps
      volt-vmm logs web
      volt-vmm attach web
  Take a snapshot of the running VM, and restore it, any number of times:
      volt-vmm snapshot create web warm
      volt-vmm restore --detach warm
  Fork the running VM into eight children, each in its own process:
      volt-vmm fork --count 8 web
  End a VM, and remove what is kept of those that have ended:
      volt-vmm stop web
      volt-vmm prune
  Restore over HTTP, into a prewarmed VM:
      volt-vmm --api-socket /tmp/vm.sock --prewarm 512M,vcpus=2 &
      curl --unix-socket /tmp/vm.sock -X PUT http://localhost/snapshot/load \\
           -d '{\"snapshot_path\": \"/tmp/warm\", \"resume_vm\": true}'
";

/// MicroVMs on KVM: boot Linux once, snapshot it, and restore it in milliseconds.
#[derive(Debug, Parser)]
#[command(
    name = "volt-vmm",
    version,
    max_term_width = parsed::WIDTH,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = "Run `volt-vmm --help` for examples and exit statuses.",
    after_long_help = help(),
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    /// Restore the snapshot in DIR, as `volt-vmm restore DIR` does
    #[arg(long, value_name = "DIR", conflicts_with = "snapshot", hide = true)]
    restore: Option<PathBuf>,

    /// Snapshot the VM behind --api-socket into DIR, as `volt-vmm snapshot create DIR` does
    #[arg(long, value_name = "DIR", requires = "api_socket", hide = true)]
    snapshot: Option<PathBuf>,

    /// Unix socket of the REST API. Alone: start without a VM, which a client then loads or boots
    #[arg(long, value_name = "SOCKET")]
    api_socket: Option<PathBuf>,

    /// Name of the VM in answers of the API [default: anonymous-instance]
    #[arg(long, value_name = "NAME", requires = "api_socket", conflicts_with_all = ["restore", "snapshot"])]
    id: Option<String>,

    /// Create an empty VM of this shape ahead of /snapshot/load: SIZE[,vcpus=COUNT]
    /// [,irqchip=kernel|split], such as 512M,vcpus=2. A snapshot of another shape does not use it
    #[arg(
        long,
        value_name = "SHAPE",
        requires = "api_socket",
        conflicts_with_all = ["restore", "snapshot"],
        value_parser = prewarm::parse,
    )]
    prewarm: Option<VmShape>,

    /// Let a process that waits for a VM use files in this directory, if it is started with --confine strict.
    /// Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,

    #[command(flatten)]
    log: LogArgs,

    #[command(flatten)]
    confine: ConfineArgs,
}

/// The commands. Clap defines the options of the one that is named, because those of all take half a
/// millisecond.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum Command {
    Run(Box<run::Run>),
    Ps(ps::Ps),
    Exec(exec::Exec),
    Cp(copy::Copy),
    Inspect(inspect::Inspect),
    Logs(logs::Logs),
    Attach(attach::Attach),
    Console(attach::AttachConsole),
    PortForward(port_forward::PortForward),
    Pause(pause::Pause),
    Resume(pause::Resume),
    Stop(stop::Stop),
    Kill(stop::Kill),
    Wait(wait::Wait),
    Rm(rm::Rm),
    Prune(rm::Prune),
    Stats(stats::Stats),
    Events(events::Events),
    Snapshot(snapshots::Snapshot),
    Image(images::ImageCommand),
    Volume(volumes::VolumeCommand),
    Restore(Box<restore::Restore>),
    Fork(fork::ForkCommand),
    Rewind(rewind::Rewind),
    Pager(pager::Pager),
    #[command(name = FORKED, hide = true)]
    Forked(forked::ForkedCommand),
    Doctor(doctor::Doctor),
    Metrics(metrics::Metrics),
    Cpu(cpu::Cpu),
    Devices(device_help::Devices),
    Completion(completion::Completion),
    Man(man::Man),
    Jailer(jailer::Jailer),
}

/// Runs the command line. The first argument is the program's name.
///
/// A plain restore and a fork's child are recognized without clap, because its set-up takes longer than all
/// other work before the restore. Clap would parse them to the same command. Firecracker's command line has a
/// parser of its own.
pub(crate) fn execute(mut arguments: Vec<OsString>) -> Outcome {
    // Firecracker's clients execute a program of this name.
    if arguments.first().is_some_and(|name| Path::new(name).file_name() == Some("jailer".as_ref())) {
        arguments.insert(1, "jailer".into());
    }
    if let Some(restore) = plain_restore(&arguments) {
        return restore.execute();
    }
    if Firecracker::recognizes(&arguments) {
        return Firecracker::parse_line(arguments).execute();
    }
    match forked::ForkedCommand::recognize(&arguments) {
        Some(forked) => forked.execute(),
        None => completion::answer(&arguments).unwrap_or_else(|| parsed::<Arguments>(arguments).execute()),
    }
}

fn plain_restore(arguments: &[OsString]) -> Option<restore::Restore> {
    let [_name, command, dir] = arguments else { return None };
    let plain = !dir.is_empty() && !dir.as_encoded_bytes().starts_with(b"-");
    let restores = plain && (command == "--restore" || command == "restore" && dir != "help");
    restores.then(|| restore::Restore::of(dir.into(), None))
}

impl Arguments {
    /// Runs the command that the arguments name.
    pub(crate) fn execute(self) -> Outcome {
        match (self.command, self.restore, self.snapshot, self.api_socket) {
            (Some(command), ..) => command.execute(),
            (None, Some(dir), _, api_socket) => {
                let plain = restore::Restore::of(dir, api_socket);
                restore::Restore { confine: self.confine, log: self.log, allowed: self.allowed, ..plain }
                    .execute()
            }
            (None, None, Some(dir), Some(api_socket)) => snapshots::Create::of(dir, api_socket).execute(),
            (None, None, None, Some(api_socket)) => {
                let Self { id, prewarm, allowed, log, confine, .. } = self;
                log.apply(id.as_deref().unwrap_or(DEFAULT_ID))?;
                let options = ApiOptions::default();
                empty::Empty { api_socket, id, prewarm, allowed, confine, options }.execute()
            }
            (None, None, _, None) => unreachable!("clap requires an argument, and a socket with --snapshot"),
        }
    }
}

impl Command {
    fn execute(self) -> Outcome {
        match self {
            Self::Run(command) if command.image.image.is_some() => image_vm::run(*command),
            Self::Run(command) => command.execute(),
            Self::Ps(command) => command.execute(),
            Self::Exec(command) => command.execute(),
            Self::Cp(command) => command.execute(),
            Self::Inspect(command) => command.execute(),
            Self::Logs(command) => command.execute(),
            Self::Attach(command) => command.execute(),
            Self::Console(command) => command.execute(),
            Self::PortForward(command) => command.execute(),
            Self::Pause(command) => command.execute(),
            Self::Resume(command) => command.execute(),
            Self::Stop(command) => command.execute(),
            Self::Kill(command) => command.execute(),
            Self::Wait(command) => command.execute(),
            Self::Rm(command) => command.execute(),
            Self::Prune(command) => command.execute(),
            Self::Stats(command) => command.execute(),
            Self::Events(command) => command.execute(),
            Self::Snapshot(command) => command.execute(),
            Self::Image(command) => command.execute(),
            Self::Volume(command) => command.execute(),
            Self::Restore(command) => command.execute(),
            Self::Fork(command) => command.execute(),
            Self::Rewind(command) => command.execute(),
            Self::Pager(command) => command.execute(),
            Self::Forked(command) => command.execute(),
            Self::Doctor(command) => command.execute(),
            Self::Metrics(command) => command.execute(),
            Self::Cpu(command) => command.execute(),
            Self::Devices(command) => command.execute(),
            Self::Completion(command) => command.execute(),
            Self::Man(command) => command.execute(),
            Self::Jailer(command) => command.execute(),
        }
    }
}

fn help() -> String {
    format!("{EXAMPLES}\n{}", Status::help())
}

#[cfg(test)]
mod tests {
    use crate::process::child_command::{child_arguments, confinement_of_child};
    use crate::process::confinement_choice::ConfinementChoice;
    use clap::CommandFactory;

    use super::parsed::whole;
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn definition_passes_the_checks_of_clap() {
        whole::<Arguments>().debug_assert();
    }

    #[test]
    fn restore_option_and_subcommand_are_the_same() {
        let short = parse("volt-vmm --restore /s --api-socket /a").unwrap();
        assert_eq!((short.restore, short.api_socket), (Some("/s".into()), Some("/a".into())));
        let Some(Command::Restore(long)) = parse("volt-vmm restore /s --api-socket /a").unwrap().command
        else {
            panic!()
        };
        assert_eq!((long.dir, long.api_socket), ("/s".into(), Some("/a".into())));
    }

    #[test]
    fn plain_restore_alone_is_recognized_without_clap() {
        let recognize = |line: &str| plain_restore(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["volt-vmm --restore /s", "volt-vmm restore /s"] {
            assert_eq!(recognize(line).unwrap().dir, PathBuf::from("/s"), "{line}");
        }
        for line in [
            "volt-vmm restore --help",
            "volt-vmm restore -h",
            "volt-vmm --restore ",
            "volt-vmm --restore",
            "volt-vmm run /s",
            "volt-vmm restore /s --api-socket /a",
        ] {
            assert!(recognize(line).is_none(), "{line}");
        }
    }

    #[test]
    fn child_is_recognized_as_clap_parses_it() {
        let arguments = child_arguments(
            "/a b".as_ref(),
            "f00",
            &confinement_of_child(&ConfinementChoice::default()).unwrap(),
        );
        let line: Vec<OsString> = std::iter::once("volt-vmm".into()).chain(arguments).collect();
        let alone = forked::ForkedCommand::recognize(&line).unwrap();
        let Some(Command::Forked(parsed)) = Arguments::try_parse_from(&line).unwrap().command else {
            panic!()
        };
        assert_eq!(format!("{alone:?}"), format!("{parsed:?}"));
        for other in ["volt-vmm forked --id f00 --api-socket /a", "volt-vmm fork --api-socket /a --child /b"]
        {
            let line: Vec<_> = other.split(' ').map(OsString::from).collect();
            assert!(forked::ForkedCommand::recognize(&line).is_none(), "{other}");
        }
    }

    #[test]
    fn invalid_command_line_is_refused() {
        for line in [
            "volt-vmm",
            "volt-vmm --snapshot /s",
            "volt-vmm --snapshot /s --restore /s --api-socket /a",
            "volt-vmm snapshot",
            "volt-vmm restore",
            "volt-vmm run",
            "volt-vmm run --kernel /k --vcpus two",
            "volt-vmm --api-socket /a run --kernel /k",
            "volt-vmm --restore",
            "volt-vmm --prewarm 64M",
            "volt-vmm --prewarm 64X --api-socket /a",
            "volt-vmm --prewarm 64M --restore /s --api-socket /a",
            "volt-vmm fork --child /c",
            "volt-vmm fork",
            "volt-vmm cpu",
            "volt-vmm cpu intersect",
            "volt-vmm cpu check",
            "volt-vmm cpu check --json",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    /// Collects the visible commands without subcommands whose long help has no example, but clap's own.
    fn collect_without_example(path: &str, command: &clap::Command, to: &mut Vec<String>) {
        if command.get_name() == "help" {
            return;
        }
        let path = format!("{path} {}", command.get_name());
        let mut children = command.get_subcommands().filter(|child| !child.is_hide_set()).peekable();
        let help = command.clone().render_long_help().to_string();
        if children.peek().is_none() && !help.contains("Example: volt-vmm") {
            to.push(path.clone());
        }
        children.for_each(|child| collect_without_example(&path, child, to));
    }

    #[test]
    fn help_of_each_command_has_an_example() {
        let mut found = Vec::new();
        let commands = whole::<Arguments>();
        let shown = commands.get_subcommands().filter(|command| !command.is_hide_set());
        shown.for_each(|command| collect_without_example("volt-vmm", command, &mut found));
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn options_of_a_command_are_defined_once_it_is_named() {
        let options = |command: &clap::Command| {
            let run = command.find_subcommand("run").unwrap();
            run.get_arguments().filter(|option| option.get_id() == "kernel").count()
        };
        assert_eq!((options(&Arguments::command()), options(&whole::<Arguments>())), (0, 1));
    }

    #[test]
    fn list_of_commands_describes_each() {
        let help = whole::<Arguments>().render_help().to_string();
        let (_, list) = help.split_once("Commands:\n").unwrap();
        let list = list.lines().take_while(|line| !line.is_empty());
        let commands = list.filter(|line| !line.starts_with("   ")).collect::<Vec<_>>();
        assert!(commands.len() > 20, "{help}");
        assert!(commands.iter().all(|line| line.split_whitespace().count() > 3), "{help}");
    }

    #[test]
    fn old_spellings_work_and_are_not_in_the_help() {
        let help = Arguments::command().render_long_help().to_string();
        let options = help.split_once("Options:").unwrap().1;
        assert!(!options.contains("--restore <") && !options.contains("--snapshot <"), "{options}");
        assert!(parse("volt-vmm --snapshot /s --api-socket /a").is_ok());
    }

    #[test]
    fn help_has_examples_and_exit_statuses() {
        let help = Arguments::command().render_long_help().to_string();
        for words in ["doctor", "volt-vmm run --name", "snapshot create", "Exit status", "128+N", "Ctrl-A X"]
        {
            assert!(help.contains(words), "{words}: {help}");
        }
    }
}
