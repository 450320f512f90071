//! Snapshots a VM without a jail, and runs another one from the snapshot, by the crate's own means.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use fctools::process_spawner::DirectProcessSpawner;
use fctools::runtime::tokio::TokioRuntime;
use fctools::vm::Vm;
use fctools::vm::api::VmApi;
use fctools::vm::models::{CreateSnapshot, SnapshotType};
use fctools::vm::shutdown::{VmShutdownAction, VmShutdownMethod};
use fctools::vm::snapshot::PrepareVmFromSnapshotOptions;
use fctools::vmm::arguments::{VmmApiSocket, VmmArguments};
use fctools::vmm::executor::unrestricted::UnrestrictedVmmExecutor;
use fctools::vmm::id::VmmId;
use fctools::vmm::ownership::VmmOwnershipModel;
use fctools::vmm::resource::system::ResourceSystem;
use fctools::vmm::resource::{MovedResourceType, ResourceType};

use crate::{PATIENCE, Resources, configuration, guest_writes, installation, variable};

type PlainVm = Vm<UnrestrictedVmmExecutor, DirectProcessSpawner, TokioRuntime>;

fn executor(directory: &Path, name: &str) -> Result<UnrestrictedVmmExecutor, Box<dyn Error>> {
    let socket = directory.join(format!("{name}.sock"));
    Ok(UnrestrictedVmmExecutor::new(VmmArguments::new(VmmApiSocket::Enabled(socket))).id(VmmId::new(name)?))
}

/// Waits until the guest has written other data to its disk.
async fn guest_writes_anew() -> Result<(), Box<dyn Error>> {
    let before = fs::read(variable("VOLT_DISK")?)?;
    guest_writes(|sector| *sector != before[..512]).await
}

async fn end(vm: &mut PlainVm) -> Result<(), Box<dyn Error>> {
    let action =
        VmShutdownAction { method: VmShutdownMethod::Kill, timeout: Some(PATIENCE), graceful: false };
    let outcome = vm.shutdown([action]).await?;
    println!("ended: {:?}", outcome.exit_status);
    Ok(())
}

/// Runs both VMs to their ends.
pub async fn run() -> Result<(), Box<dyn Error>> {
    let directory = PathBuf::from(variable("VOLT_BASE")?);
    let model = VmmOwnershipModel::Shared;
    let mut resources: Resources = ResourceSystem::new(DirectProcessSpawner, TokioRuntime, model);
    let configuration = configuration(&mut resources)?;
    let mut first =
        PlainVm::prepare(executor(&directory, "first")?, resources, installation()?, configuration).await?;
    first.start(PATIENCE).await?;
    guest_writes(|sector| sector.iter().any(|byte| *byte != 0)).await?;
    first.pause().await?;
    let resources = first.get_resource_system_mut();
    let state = resources.create_resource(directory.join("state"), ResourceType::Produced)?;
    let memory = resources.create_resource(directory.join("memory"), ResourceType::Produced)?;
    let request =
        CreateSnapshot { snapshot_type: Some(SnapshotType::Full), snapshot: state, mem_file: memory };
    let snapshot = first.create_snapshot(request).await?;
    end(&mut first).await?;
    let options = PrepareVmFromSnapshotOptions {
        executor: executor(&directory, "second")?,
        process_spawner: DirectProcessSpawner,
        runtime: TokioRuntime,
        moved_resource_type: MovedResourceType::HardLinked,
        ownership_model: model,
        track_dirty_pages: Some(true),
        resume_vm: Some(true),
        network_overrides: Vec::new(),
    };
    let mut second = snapshot.prepare_vm(&mut first, options).await?;
    second.start(PATIENCE).await?;
    let info = second.get_info().await?;
    println!("info: id={} paused={}", info.id, info.is_paused);
    guest_writes_anew().await?;
    end(&mut second).await?;
    second.cleanup().await?;
    first.cleanup().await?;
    Ok(())
}
