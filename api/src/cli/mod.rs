//! The command line. Each subcommand is a struct in a file of its own, with `execute(self)`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::exit::Status;
use crate::failure::Failure;

mod devices;
mod doctor;
mod empty;
mod limits;
mod overrides;
mod packing;
mod restore;
mod run;
mod snapshot;
mod snapshot_files;

type Outcome = Result<Status, Failure>;

const EXAMPLES: &str = "\
Examples:
  Can this machine run it, and how fast?
      volt-vmm doctor
  Boot Linux; its console is this terminal (Ctrl-A X ends it):
      volt-vmm run --kernel vmlinux --initrd init.cpio --memory 512M --vcpus 2 --api-socket /tmp/vm.sock
  From another terminal, take a snapshot of it while it runs:
      volt-vmm snapshot create /tmp/warm --api-socket /tmp/vm.sock
  Run what was in the snapshot, as often as you like, also at the same time:
      volt-vmm restore /tmp/warm
  The same from a program, over HTTP:
      volt-vmm --api-socket /tmp/vm.sock &
      curl --unix-socket /tmp/vm.sock -X PUT http://localhost/snapshot/load \\
           -d '{\"snapshot_path\": \"/tmp/warm\", \"resume_vm\": true}'
";

/// MicroVMs on KVM that are there the moment they are asked for: boot Linux once, snapshot it, restore it in milliseconds.
#[derive(Debug, Parser)]
#[command(
    name = "volt-vmm",
    version,
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = concat!("Run `volt-vmm --help` for examples and exit statuses."),
    after_long_help = help(),
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// Restore the snapshot in DIR, as `volt-vmm restore DIR` does
    #[arg(long, value_name = "DIR", conflicts_with = "snapshot")]
    restore: Option<PathBuf>,

    /// Snapshot the VM behind --api-socket into DIR, as `volt-vmm snapshot create DIR` does
    #[arg(long, value_name = "DIR", requires = "api_socket")]
    snapshot: Option<PathBuf>,

    /// Unix socket of the REST API. Alone: start without a VM and wait for a client to load or boot one
    #[arg(long, value_name = "SOCKET")]
    api_socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Restore(restore::Restore),
    Snapshot(snapshot::Snapshot),
    Doctor(doctor::Doctor),
}

/// Carries out what the process's arguments, of which the first is its name, say. A restore and nothing else is recognised
/// without clap, which means the same by it, because setting up clap takes longer than everything else before the restore.
pub(crate) fn execute(arguments: Vec<OsString>) -> Outcome {
    match restore_alone(&arguments) {
        Some(restore) => restore.execute(),
        None => Cli::parse_from(arguments).execute(),
    }
}

fn restore_alone(arguments: &[OsString]) -> Option<restore::Restore> {
    let [_name, word, dir] = arguments else { return None };
    let plain = !dir.is_empty() && !dir.as_encoded_bytes().starts_with(b"-");
    let restores = plain && (word == "--restore" || word == "restore" && dir != "help");
    restores.then(|| restore::Restore::of(dir.into(), None))
}

impl Cli {
    /// Carries out what the arguments say.
    pub(crate) fn execute(self) -> Outcome {
        match (self.command, self.restore, self.snapshot, self.api_socket) {
            (Some(command), ..) => command.execute(),
            (None, Some(dir), _, api_socket) => restore::Restore::of(dir, api_socket).execute(),
            (None, None, Some(dir), Some(api_socket)) => snapshot::Create::of(dir, api_socket).execute(),
            (None, None, None, Some(api_socket)) => empty::Empty { api_socket }.execute(),
            (None, None, _, None) => unreachable!("clap requires an argument, and a socket with --snapshot"),
        }
    }
}

impl Command {
    fn execute(self) -> Outcome {
        match self {
            Self::Run(command) => command.execute(),
            Self::Restore(command) => command.execute(),
            Self::Snapshot(command) => command.execute(),
            Self::Doctor(command) => command.execute(),
        }
    }
}

fn help() -> String {
    format!("{EXAMPLES}\n{}", Status::HELP)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, String> {
        Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let short = parse("volt-vmm --restore /s --api-socket /a").unwrap();
        assert_eq!((short.restore, short.api_socket), (Some("/s".into()), Some("/a".into())));
        let Some(Command::Restore(long)) = parse("volt-vmm restore /s --api-socket /a").unwrap().command
        else {
            panic!()
        };
        assert_eq!((long.dir, long.api_socket), ("/s".into(), Some("/a".into())));
    }

    #[test]
    fn a_restore_alone_is_recognised_and_nothing_else() {
        let recognise = |line: &str| restore_alone(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["volt-vmm --restore /s", "volt-vmm restore /s"] {
            assert_eq!(recognise(line).unwrap().dir, PathBuf::from("/s"), "{line}");
        }
        for line in [
            "volt-vmm restore --help",
            "volt-vmm restore -h",
            "volt-vmm --restore ",
            "volt-vmm --restore",
            "volt-vmm run /s",
            "volt-vmm restore /s --api-socket /a",
        ] {
            assert!(recognise(line).is_none(), "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "volt-vmm",
            "volt-vmm --snapshot /s",
            "volt-vmm --snapshot /s --restore /s --api-socket /a",
            "volt-vmm snapshot create /s",
            "volt-vmm snapshot",
            "volt-vmm restore",
            "volt-vmm run",
            "volt-vmm run --kernel /k --vcpus two",
            "volt-vmm --api-socket /a run --kernel /k",
            "volt-vmm --restore",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn help_tells_a_newcomer_what_to_do() {
        let help = Cli::command().render_long_help().to_string();
        for words in
            ["doctor", "volt-vmm run --kernel", "snapshot create", "Exit status", "128+N", "Ctrl-A X"]
        {
            assert!(help.contains(words), "{words}: {help}");
        }
    }
}
