//! A VM, and another one that runs from its snapshot.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use fctools::process_spawner::DirectProcessSpawner;
use fctools::runtime::tokio::TokioRuntime;
use fctools::vm::api::VmApi;
use fctools::vm::models::{CreateSnapshot, SnapshotType};
use fctools::vm::shutdown::VmShutdownMethod;
use fctools::vm::snapshot::{PrepareVmFromSnapshotOptions, VmSnapshot};
use fctools::vmm::executor::VmmExecutor;
use fctools::vmm::ownership::VmmOwnershipModel;
use fctools::vmm::resource::system::ResourceSystem;
use fctools::vmm::resource::{MovedResourceType, ResourceType};

use crate::{Machine, PATIENCE, configuration, end, guest_writes, installation, shut_down, variable};

/// How both VMs run.
pub struct Pair<E> {
    /// First and second, as in `models`.
    pub executors: [E; 2],
    pub models: [VmmOwnershipModel; 2],
    /// State and memory of the snapshot.
    pub files: [PathBuf; 2],
    /// Whether the second logs writes.
    pub track_dirty_pages: Option<bool>,
}

impl<E: VmmExecutor> Pair<E> {
    /// Runs both VMs to their ends. `hand_over` prepares the files of the snapshot for the second.
    pub async fn run(
        self,
        hand_over: impl FnOnce(&VmSnapshot) -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let ([executor, second], [model, ownership_model]) = (self.executors, self.models);
        let mut resources = ResourceSystem::new(DirectProcessSpawner, TokioRuntime, model);
        let configuration = configuration(&mut resources)?;
        let mut first = Machine::prepare(executor, resources, installation()?, configuration).await?;
        first.start(PATIENCE).await?;
        guest_writes(|sector| sector.iter().any(|byte| *byte != 0)).await?;
        first.pause().await?;
        let resources = first.get_resource_system_mut();
        let [snapshot, mem_file] =
            self.files.map(|path| resources.create_resource(path, ResourceType::Produced));
        let (snapshot, mem_file, snapshot_type) = (snapshot?, mem_file?, Some(SnapshotType::Full));
        let snapshot = first.create_snapshot(CreateSnapshot { snapshot_type, snapshot, mem_file }).await?;
        shut_down(&mut first, VmShutdownMethod::Kill).await?;
        hand_over(&snapshot)?;

        let written = fs::read(variable("VOLT_DISK")?)?[..512].to_vec();
        let options = PrepareVmFromSnapshotOptions {
            executor: second,
            process_spawner: DirectProcessSpawner,
            runtime: TokioRuntime,
            moved_resource_type: MovedResourceType::HardLinked,
            ownership_model,
            track_dirty_pages: self.track_dirty_pages,
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
}
