//! `volt-vmm volume ls`: the volumes that are here.

use clap::Args;

use crate::cli::Outcome;
use crate::cli::list_options::ListArgs;
use crate::cli::volume_place::{Volume, Volumes};
use crate::output::table::Table;
use crate::process::exit::Status;

/// List volumes, with the sizes that VMs see and those on the host's disk
///
/// Example: volt-vmm volume ls
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    list: ListArgs,
}

impl List {
    pub(crate) fn execute(self) -> Outcome {
        let all = Volumes::open()?.all()?;
        self.list.print(&all, |volume| vec![volume.name.to_string()], table)?;
        Ok(Status::Success)
    }
}

fn table(all: &Vec<Volume>) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut table = Table::new(["NAME", "SIZE", "ON DISK"]);
    for volume in all {
        table.row([volume.name.to_string(), mib(volume.size_bytes), mib(volume.disk_bytes)]);
    }
    table.text()
}
