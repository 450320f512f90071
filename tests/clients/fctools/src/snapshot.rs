//! Snapshots a VM without a jail, and runs another one from the snapshot.

use std::error::Error;
use std::path::{Path, PathBuf};

use fctools::vmm::arguments::{VmmApiSocket, VmmArguments};
use fctools::vmm::executor::unrestricted::UnrestrictedVmmExecutor;
use fctools::vmm::id::VmmId;
use fctools::vmm::ownership::VmmOwnershipModel;

use crate::pair::Pair;
use crate::variable;

fn executor(directory: &Path, name: &str) -> Result<UnrestrictedVmmExecutor, Box<dyn Error>> {
    let socket = directory.join(format!("{name}.sock"));
    Ok(UnrestrictedVmmExecutor::new(VmmArguments::new(VmmApiSocket::Enabled(socket))).id(VmmId::new(name)?))
}

/// Runs both VMs to their ends.
pub async fn run() -> Result<(), Box<dyn Error>> {
    let directory = PathBuf::from(variable("VOLT_BASE")?);
    let pair = Pair {
        executors: [executor(&directory, "first")?, executor(&directory, "second")?],
        models: [VmmOwnershipModel::Shared, VmmOwnershipModel::Shared],
        files: ["state", "memory"].map(|name| directory.join(name)),
        track_dirty_pages: Some(true),
    };
    pair.run(|_| Ok(())).await
}
