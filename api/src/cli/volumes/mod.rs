//! `volt-vmm volume`: disks that outlive the VMs that write to them.

use clap::{Args, Subcommand};

mod create;
mod list;
mod removal;

use super::Outcome;

/// Make, list and remove volumes, which VMs of images mount (run -v)
#[derive(Debug, Args)]
pub(crate) struct VolumeCommand {
    #[command(subcommand)]
    command: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    Create(create::Create),
    #[command(visible_alias = "list")]
    Ls(list::List),
    Rm(removal::Remove),
}

impl VolumeCommand {
    pub(crate) fn execute(self) -> Outcome {
        match self.command {
            Act::Create(command) => command.execute(),
            Act::Ls(command) => command.execute(),
            Act::Rm(command) => command.execute(),
        }
    }
}
