//! `--name` and `--detach` of the commands that start a VM.

use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::agent::forwarding::Listening;
use crate::cli::Outcome;
use crate::client;
use crate::failure::Failure;
use crate::output::print::print;
use crate::run_dir::name::VmName;
use crate::run_dir::record::{NewRecord, Origin, Record};
use crate::session::named::{Client, NamedStart};
use crate::terminal::attached::Left;

/// The time that a guest gets to end by itself, and after the end of its main process to unmount its disks.
pub(super) const TO_UNMOUNT: Duration = Duration::from_secs(10);
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

    /// Makes it a VM of this command alone, which is removed with it.
    pub(crate) fn last_only_this_once(&mut self) {
        *self = Self { remove: true, ..Self::default() };
    }

    /// Whether the VM runs in the background.
    pub(crate) fn is_detached(&self) -> bool {
        self.detach
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
        let new = NewRecord { api_socket, removed_at_end: remove, ..NewRecord::of(origin) };
        let announce = if json { announce_as_json } else { announce };
        let client = if detach { Client::Announce(announce) } else { Client::Console(end_vm) };
        NamedStart { name, new, ports: Vec::new(), client }.run(|api_socket| vm(Some(api_socket)))
    }
}

impl NamingArgs {
    /// Starts a VM in a process of its own, with a name that is made up if none is given. Calls `follow` here
    /// once it runs, with whether the VM is detached. `vm` takes the path of its API. A process of their own
    /// serves `ports`.
    pub(crate) fn follow<'a>(
        self,
        new: NewRecord,
        ports: Vec<Listening>,
        follow: impl FnOnce(&Record, bool) -> Result<Left, Failure> + 'a,
        vm: impl FnOnce(PathBuf) -> Outcome,
    ) -> Outcome {
        let Self { name, detach, remove, json } = self;
        let new = NewRecord { removed_at_end: remove, ..new };
        let announce = if json { announce_as_json } else { announce };
        let follow = Box::new(move |record: &Record| {
            let left = follow(record, detach)?;
            if detach {
                announce(record)?;
            }
            Ok(left)
        });
        let client = Client::Other(follow, ask_to_end);
        NamedStart { name, new, ports, client }.run(vm)
    }
}

/// Ends the VM at once.
pub(in crate::cli) fn end_vm(api_socket: &Path) -> Result<(), Failure> {
    client::put_within(api_socket, "/v1/stop", &(), TO_STOP)
}

/// Ends the VM as its power button does, or else once a stubborn guest has had its time.
pub(in crate::cli) fn ask_to_end(api_socket: &Path) -> Result<(), Failure> {
    let body = json!({ "timeout_ms": TO_UNMOUNT.as_millis() as u64 });
    client::put_within(api_socket, "/v1/vm/shutdown", &body, TO_STOP)
}

fn announce(record: &Record) -> Result<(), Failure> {
    writeln!(stdout(), "{}", record.name).map_err(|source| Failure::system("print the VM's name", source))
}

fn announce_as_json(record: &Record) -> Result<(), Failure> {
    print(&record.clone().without_variables(), true, |_| String::new())
}
