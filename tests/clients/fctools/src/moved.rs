//! Snapshots a VM in the jail of one user, and runs another one from it in the jail of another user.

use std::error::Error;
use std::os::unix::fs::chown;
use std::path::Path;

use fctools::vmm::ownership::VmmOwnershipModel;

use crate::pair::Pair;
use crate::{executor, variable};

/// Runs both VMs to their ends.
pub async fn run() -> Result<(), Box<dyn Error>> {
    let gid = variable("VOLT_GROUP")?.parse()?;
    let (uid, other) = (variable("VOLT_USER")?.parse()?, variable("VOLT_OTHER_USER")?.parse()?);
    let jail = |name: &str| executor(format!("{}-{name}", variable("VOLT_ID")?));
    let pair = Pair {
        executors: [jail("first")?, jail("second")?],
        models: [uid, other].map(|uid| VmmOwnershipModel::Downgraded { uid, gid }),
        files: ["/run/api/state", "/run/api/memory"].map(Into::into),
        track_dirty_pages: None,
    };
    pair.run(|snapshot| {
        let disk = variable("VOLT_DISK")?;
        // The crate links the files as they are.
        for path in [&snapshot.snapshot_path, &snapshot.mem_file_path, Path::new(&disk)] {
            chown(path, Some(other), Some(gid))?;
        }
        Ok(())
    })
    .await
}
