//! `volt-vmm snapshot bench`: times page access under each restore strategy.

use std::path::PathBuf;

use clap::Args;
use volt_vmm::Store;
use volt_vmm::internal::replay;

use super::Outcome;
use crate::output::print::print;
use crate::output::progress;
use crate::output::replayed;
use crate::process::exit::Status;

/// Replay a recorded working set on a snapshot's memory, without a VM, and time each page access
///
/// Measures every restore strategy for this memory.
///
/// Example: volt-vmm snapshot bench /var/lib/volt-vmm/snapshots/warm
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Directory of the snapshot
    dir: PathBuf,

    /// Recorded working set of this snapshot [default: working-set in DIR]
    recording: Option<PathBuf>,

    /// Number of rounds over all strategies
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000),
    )]
    rounds: u32,

    /// Allow a diff that this user's volt-vmm did not write to have its base in this directory. Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(crate) fn execute(self) -> Outcome {
        let (store, name) = Store::split(&self.dir)?;
        let found = progress::with_bar("replaying", |progress| {
            replay(&store, &name, self.recording.as_deref(), self.rounds, &self.allowed, progress)
        })?;
        print(&found, self.json, replayed::text)?;
        Ok(Status::Success)
    }
}
