//! `volt-vmm image`: gets images of containers from registries and archives, and works on the stored ones.

use clap::{Args, Subcommand};
use oci_spec::image::{Arch, Os};
use volt_image::digest::Digest;
use volt_image::manifest::Platform;

mod export;
mod list;
mod load;
mod pull;
mod removal;
mod save;
mod warm;

use super::Outcome;

/// Pull images of containers, load them from archives, list and remove them
#[derive(Debug, Args)]
pub(crate) struct ImageCommand {
    #[command(subcommand)]
    command: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    Pull(pull::Pull),
    Load(load::Load),
    Save(save::Save),
    #[command(visible_alias = "list")]
    Ls(list::List),
    Inspect(list::Inspect),
    Export(export::Export),
    Rm(removal::Remove),
    Prune(removal::Prune),
    Warm(warm::Warm),
}

impl ImageCommand {
    pub(crate) fn execute(self) -> Outcome {
        match self.command {
            Act::Pull(command) => command.execute(),
            Act::Load(command) => command.execute(),
            Act::Save(command) => command.execute(),
            Act::Ls(command) => command.execute(),
            Act::Inspect(command) => command.execute(),
            Act::Export(command) => command.execute(),
            Act::Rm(command) => command.execute(),
            Act::Prune(command) => command.execute(),
            Act::Warm(command) => command.execute(),
        }
    }
}

/// Parses `OS/ARCHITECTURE`.
fn platform(text: &str) -> Result<Platform, String> {
    match text.split_once('/') {
        Some((os, architecture)) if !os.is_empty() && !architecture.is_empty() => {
            let (os, architecture) = (Os::from(os), Arch::from(architecture));
            Ok(Platform { os, architecture })
        }
        _ => Err("write OS/ARCHITECTURE, such as linux/amd64".to_owned()),
    }
}

/// An image's digest as tables have it.
fn short(id: &Digest) -> &str {
    &id.digest()[..12]
}
