//! `volt-vmm volume rm`: removes volumes with their content.

use clap::Args;

use crate::cli::vms::pause::for_each;
use crate::cli::volume_place::{Volume, Volumes};
use crate::cli::{Outcome, complete};
use crate::output::print::print;
use crate::run_dir::name::VmName;

/// Remove volumes with their content. One that a VM uses stays
///
/// Example: volt-vmm volume rm db
#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// Names of volumes
    #[arg(value_name = "NAME", required = true, add = complete::volumes())]
    names: Vec<VmName>,

    /// Print the removed volumes as JSON
    #[arg(long)]
    json: bool,
}

impl Remove {
    pub(crate) fn execute(self) -> Outcome {
        let (volumes, mut removed) = (Volumes::open()?, Vec::new());
        let outcome = for_each(&self.names, |name| {
            removed.push(volumes.remove(name)?);
            Ok(())
        });
        let names =
            |removed: &Vec<Volume>| removed.iter().map(|volume| format!("{}\n", volume.name)).collect();
        print(&removed, self.json, names)?;
        outcome
    }
}
