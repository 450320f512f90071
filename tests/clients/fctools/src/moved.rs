//! Snapshots a VM in the jail of one user, and runs another one from it in the jail of another user.

use std::error::Error;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;

use fctools::process_spawner::DirectProcessSpawner;
use fctools::runtime::tokio::TokioRuntime;
use fctools::vm::api::VmApi;
use fctools::vm::models::{CreateSnapshot, SnapshotType};
use fctools::vm::shutdown::{VmShutdownAction, VmShutdownMethod};
use fctools::vm::snapshot::PrepareVmFromSnapshotOptions;
use fctools::vmm::ownership::VmmOwnershipModel;
use fctools::vmm::resource::system::ResourceSystem;
use fctools::vmm::resource::{MovedResourceType, ResourceType};

use crate::{
    Executor, JailedVm, PATIENCE, configuration, end, executor, guest_writes, installation, variable,
};

/// Runs both VMs to their ends.
pub async fn run() -> Result<(), Box<dyn Error>> {
    let gid = variable("VOLT_GROUP")?.parse()?;
    let (uid, other) = (variable("VOLT_USER")?.parse()?, variable("VOLT_OTHER_USER")?.parse()?);
    let mut resources =
        ResourceSystem::new(DirectProcessSpawner, TokioRuntime, VmmOwnershipModel::Downgraded { uid, gid });
    let configuration = configuration(&mut resources)?;
    let jail = |name: &str| -> Result<Executor, Box<dyn Error>> {
        executor(format!("{}-{name}", variable("VOLT_ID")?))
    };
    let mut first = JailedVm::prepare(jail("first")?, resources, installation()?, configuration).await?;
    first.start(PATIENCE).await?;
    guest_writes(|sector| sector.iter().any(|byte| *byte != 0)).await?;
    first.pause().await?;
    let resources = first.get_resource_system_mut();
    let snapshot = resources.create_resource(PathBuf::from("/run/api/state"), ResourceType::Produced)?;
    let mem_file = resources.create_resource(PathBuf::from("/run/api/memory"), ResourceType::Produced)?;
    let snapshot_type = Some(SnapshotType::Full);
    let snapshot = first.create_snapshot(CreateSnapshot { snapshot_type, snapshot, mem_file }).await?;
    let action =
        VmShutdownAction { method: VmShutdownMethod::Kill, timeout: Some(PATIENCE), graceful: false };
    println!("ended: {:?}", first.shutdown([action]).await?.exit_status);

    // The crate links the files as they are.
    for path in [&snapshot.snapshot_path, &snapshot.mem_file_path, &variable("VOLT_DISK")?.into()] {
        chown(path, Some(other), Some(gid))?;
    }
    let written = fs::read(variable("VOLT_DISK")?)?[..512].to_vec();
    let options = PrepareVmFromSnapshotOptions {
        executor: jail("second")?,
        process_spawner: DirectProcessSpawner,
        runtime: TokioRuntime,
        moved_resource_type: MovedResourceType::HardLinked,
        ownership_model: VmmOwnershipModel::Downgraded { uid: other, gid },
        track_dirty_pages: None,
        resume_vm: Some(true),
        network_overrides: Vec::new(),
    };
    let mut second = snapshot.prepare_vm(&mut first, options).await?;
    second.start(PATIENCE).await?;
    let info = second.get_info().await?;
    println!("info: id={} paused={}", info.id, info.is_paused);
    guest_writes(|sector| *sector != written[..]).await?;
    end(&mut second).await?;
    Ok(first.cleanup().await?)
}
