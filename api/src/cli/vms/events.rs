//! `volt-vmm events`: follows what happens to running VMs.

mod followed;
mod line;

use std::io::ErrorKind;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::target::Target;
use crate::cli::{Outcome, complete};
use crate::failure::Failure;
use crate::process::exit::Status;
use crate::run_dir::arrivals::Arrivals;

use followed::Followed;
use line::Printer;

/// Time between two looks at a VM that starts or ends.
const AGAIN: Duration = Duration::from_millis(50);

/// Print events of running VMs as they happen: starts, pauses, progress of snapshots, failed devices, ends
///
/// The first event of each VM is its present state. Without names, the command goes on until Ctrl-C, and VMs
/// that start meanwhile are followed too. With names, it ends with the last of these VMs.
///
/// Example: volt-vmm events --json web
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Names of VMs, beginnings of their ids, or paths of their API sockets [default: all VMs with names]
    #[arg(value_name = "VM", add = complete::living_vms())]
    vms: Vec<String>,

    /// Print lines of text, or an object of JSON in each line
    #[arg(long, value_name = "text|json", default_value = "text", hide_possible_values = true)]
    format: Format,

    /// Print an object of JSON in each line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Events {
    pub(crate) fn execute(self) -> Outcome {
        let printer = Printer { as_json: self.json || self.format == Format::Json };
        match self.follow(printer) {
            // As in `events | head`.
            Err(Failure::System { source, .. }) if source.kind() == ErrorKind::BrokenPipe => {
                Ok(Status::Success)
            }
            followed => followed.map(|()| Status::Success),
        }
    }

    fn follow(self, printer: Printer) -> Result<(), Failure> {
        let (mut arrivals, mut followed) = self.begin()?;
        loop {
            let mut kept = Vec::new();
            for mut vm in followed {
                if vm.step(printer)? {
                    kept.push(vm);
                }
            }
            followed = kept;
            if followed.is_empty() && arrivals.is_none() {
                return Ok(());
            }
            if let Some(arrivals) = &mut arrivals
                && wait(&followed, Some(arrivals))
            {
                followed.extend(arrivals.take()?.into_iter().map(Followed::arrived));
            } else if arrivals.is_none() {
                wait(&followed, None);
            }
        }
    }

    /// The VMs to follow at first, and the source of more.
    fn begin(&self) -> Result<(Option<Arrivals>, Vec<Followed>), Failure> {
        if self.vms.is_empty() {
            let (arrivals, present) = Arrivals::watch()?;
            let living = present.into_iter().filter(|vm| vm.is_alive());
            return Ok((Some(arrivals), living.map(|vm| Followed::of(Target::Named(vm.into()))).collect()));
        }
        let given = self.vms.iter().map(|word| {
            let target = Target::find(word)?;
            target.api()?;
            Ok(Followed::of(target))
        });
        Ok((None, given.collect::<Result<_, Failure>>()?))
    }
}

/// Waits for an event of a VM, for a VM to arrive, or a short time for one that starts or ends. Returns
/// whether a VM may have arrived.
fn wait(followed: &[Followed], arrivals: Option<&Arrivals>) -> bool {
    let limit = followed.iter().any(|vm| vm.stream().is_none()).then_some(AGAIN);
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let streams = followed.iter().filter_map(Followed::stream);
    let mut all: Vec<_> = arrivals.iter().map(|arrivals| PollFd::new(*arrivals, PollFlags::IN)).collect();
    all.extend(streams.map(|stream| PollFd::new(stream, PollFlags::IN)));
    let is_ok = poll(&mut all, limit.as_ref()).is_ok();
    is_ok && arrivals.is_some() && all.first().is_some_and(|first| !first.revents().is_empty())
}
