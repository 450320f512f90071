//! `volt-vmm snapshot bench`: how fast the pages that a guest touches are there, by every way in which its memory may get to it.

use std::path::PathBuf;

use clap::Args;
use volt_vmm::Store;
use volt_vmm::internal::replay;

use super::Outcome;
use crate::output::print::print;
use crate::output::progress;
use crate::output::replayed;
use crate::process::exit::Status;

/// Replay a recorded access pattern against a snapshot, without a VM, and time each touch of a page, by every strategy that there is
/// for its memory
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Directory of the snapshot
    dir: PathBuf,

    /// The recording: a working set of this snapshot [default: working-set in DIR]
    recording: Option<PathBuf>,

    /// How often each strategy has its turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Read the base of a diff that this user's volt-vmm did not write, if it lies in this directory. May be
    /// given more than once
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,

    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(crate) fn execute(self) -> Outcome {
        let (store, name) = Store::split(&self.dir)?;
        let found = progress::measured("replaying", |progress| {
            replay(&store, &name, self.recording.as_deref(), self.rounds, &self.allowed, progress)
        })?;
        print(&found, self.json, replayed::text)?;
        Ok(Status::Success)
    }
}
