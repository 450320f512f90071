//! `--name` and `--detach` of the commands that start a VM.

use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::cli::Outcome;
use crate::client;
use crate::failure::Failure;
use crate::output::print::print;
use crate::run_dir::name::VmName;
use crate::run_dir::record::{NewRecord, Origin, Record};
use crate::session::named::NamedStart;

/// Longest time for the answer to a request that ends the VM at once.
pub(super) const TO_STOP: Duration = Duration::from_secs(5);

/// Options for a VM with a name
#[derive(Debug, Default, Args)]
pub(crate) struct NamingArgs {
    /// Run the VM in a process of its own, by which other commands know it: letters, digits, `_` and `-`.
    /// Ctrl-A D leaves it [default with --detach and --rm: made up]
    #[arg(long, value_name = "NAME")]
    name: Option<VmName>,

    /// Run the VM in the background. Print its name once it runs
    #[arg(short, long)]
    detach: bool,

    /// Remove the VM once it has ended, with its logs and its status. Without --name, a name is made up
    #[arg(long = "rm")]
    remove: bool,

    /// With --detach: print the VM as JSON
    #[arg(long, requires = "detach")]
    json: bool,
}

impl NamingArgs {
    /// Whether the VM has a name.
    pub(crate) fn is_given(&self) -> bool {
        self.name.is_some() || self.detach || self.remove
    }

    /// Runs `vm` in a process of its own if the VM has a name, and here otherwise. `vm` takes the path of its
    /// API.
    pub(crate) fn run(
        self,
        origin: Origin,
        api_socket: Option<PathBuf>,
        vm: impl FnOnce(Option<PathBuf>) -> Outcome,
    ) -> Outcome {
        if !self.is_given() {
            return vm(api_socket);
        }
        let Self { name, detach, remove, json } = self;
        let new = NewRecord { origin, api_socket, removed_at_end: remove };
        let announce = if json { announce_as_json } else { announce };
        NamedStart { name, is_detached: detach, new, end_vm, announce }.run(|api_socket| vm(Some(api_socket)))
    }
}

fn end_vm(api_socket: &Path) -> Result<(), Failure> {
    client::put_within(api_socket, "/v1/stop", &(), TO_STOP)
}

fn announce(record: &Record) -> Result<(), Failure> {
    writeln!(stdout(), "{}", record.name).map_err(|source| Failure::system("print the VM's name", source))
}

fn announce_as_json(record: &Record) -> Result<(), Failure> {
    print(record, true, |_| String::new())
}
