//! Boots a VM in a jail with the crate fctools, watches it work, ends it and removes the jail, by the crate's
//! own means alone. `tests/clients/main.rs` starts it.
//!
//! ```text
//!   volt-fctools [daemonize] [new-pid-ns] [files=LIMIT]
//!   volt-fctools snapshot          without a jail: another VM runs from its snapshot
//!   volt-fctools moved             another VM runs from its snapshot, in the jail of VOLT_OTHER_USER
//! ```
//!
//! Environment: `VOLT_VMM`, `VOLT_JAILER`, `VOLT_BASE` (directory of jails), `VOLT_ID`, `VOLT_USER`,
//! `VOLT_GROUP`, `VOLT_KERNEL`, `VOLT_BOOT_ARGS`, and `VOLT_DISK`, to which the guest writes.

mod moved;
mod pair;
mod snapshot;

use std::env;
use std::error::Error;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use fctools::process_spawner::DirectProcessSpawner;
use fctools::runtime::tokio::TokioRuntime;
use fctools::vm::api::VmApi;
use fctools::vm::configuration::{InitMethod, VmConfiguration, VmConfigurationData};
use fctools::vm::models::{BootSource, Drive, MachineConfiguration};
use fctools::vm::shutdown::{VmShutdownAction, VmShutdownError, VmShutdownMethod};
use fctools::vm::{Vm, VmState};
use fctools::vmm::arguments::jailer::JailerArguments;
use fctools::vmm::arguments::{VmmApiSocket, VmmArguments};
use fctools::vmm::executor::VmmExecutor;
use fctools::vmm::executor::jailed::{FlatVirtualPathResolver, JailedVmmExecutor};
use fctools::vmm::id::VmmId;
use fctools::vmm::installation::VmmInstallation;
use fctools::vmm::ownership::VmmOwnershipModel;
use fctools::vmm::process::{VmmProcessError, VmmProcessState};
use fctools::vmm::resource::system::ResourceSystem;
use fctools::vmm::resource::{MovedResourceType, ResourceType};

type Resources = ResourceSystem<DirectProcessSpawner, TokioRuntime>;
type Executor = JailedVmmExecutor<FlatVirtualPathResolver>;
type Machine<E> = Vm<E, DirectProcessSpawner, TokioRuntime>;

/// SIGKILL.
const KILL: i32 = 9;
/// Longest wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// Place of the API's socket in the jail.
const SOCKET: &str = "/run/api/fctools.sock";

fn variable(name: &str) -> Result<String, Box<dyn Error>> {
    env::var(name).map_err(|error| format!("{name}: {error}").into())
}

/// A jail with this name, whose options are arguments of this program.
fn executor(id: String) -> Result<Executor, Box<dyn Error>> {
    let arguments = jailer_arguments(id)?;
    let socket = VmmApiSocket::Enabled(PathBuf::from(SOCKET));
    Ok(JailedVmmExecutor::new(VmmArguments::new(socket), arguments, FlatVirtualPathResolver))
}

fn jailer_arguments(id: String) -> Result<JailerArguments, Box<dyn Error>> {
    let arguments = JailerArguments::new(VmmId::new(id)?).chroot_base_dir(variable("VOLT_BASE")?);
    env::args().skip(1).filter(|option| option != "moved").try_fold(arguments, |arguments, option| {
        match option.split_once('=') {
            None if option == "daemonize" => Ok(arguments.daemonize()),
            None if option == "new-pid-ns" => Ok(arguments.exec_in_new_pid_ns()),
            Some(("files", limit)) => Ok(arguments.max_fd_limit(limit.parse()?)),
            _ => Err(format!("unknown argument {option}").into()),
        }
    })
}

/// The VM's configuration. Its files are linked into the jail.
fn configuration(resources: &mut Resources) -> Result<VmConfiguration, Box<dyn Error>> {
    let linked = ResourceType::Moved(MovedResourceType::HardLinked);
    let data = VmConfigurationData {
        boot_source: BootSource {
            kernel_image: resources.create_resource(variable("VOLT_KERNEL")?, linked)?,
            boot_args: Some(variable("VOLT_BOOT_ARGS")?),
            initrd: None,
        },
        drives: vec![Drive {
            drive_id: "disk".to_owned(),
            is_root_device: false,
            cache_type: None,
            partuuid: None,
            is_read_only: Some(false),
            block: Some(resources.create_resource(variable("VOLT_DISK")?, linked)?),
            rate_limiter: None,
            io_engine: None,
            socket: None,
        }],
        pmem_devices: Vec::new(),
        machine_configuration: MachineConfiguration {
            vcpu_count: 1,
            mem_size_mib: 64,
            smt: None,
            track_dirty_pages: None,
            huge_pages: None,
        },
        cpu_template: None,
        network_interfaces: Vec::new(),
        balloon_device: None,
        vsock_device: None,
        logger_system: None,
        metrics_system: None,
        memory_hotplug_configuration: None,
        mmds_configuration: None,
        entropy_device: None,
    };
    Ok(VmConfiguration::New { init_method: InitMethod::ViaApiCalls, data })
}

/// Waits until the first sector of the guest's disk is as wanted.
async fn guest_writes(is_wanted: impl Fn(&[u8]) -> bool) -> Result<(), Box<dyn Error>> {
    let disk = variable("VOLT_DISK")?;
    let written = async {
        while !is_wanted(&fs::read(&disk)?[..512]) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok::<_, std::io::Error>(())
    };
    Ok(tokio::time::timeout(PATIENCE, written)
        .await
        .map_err(|_| "the guest writes nothing to its disk")??)
}

async fn shut_down<E: VmmExecutor>(
    vm: &mut Machine<E>,
    method: VmShutdownMethod,
) -> Result<(), Box<dyn Error>> {
    let action = VmShutdownAction { method, timeout: Some(PATIENCE), graceful: false };
    let status = match vm.shutdown([action]).await {
        // It kills, and then refuses to wait for a process that has ended meanwhile.
        Err(VmShutdownError::WaitForExitError(VmmProcessError::IncorrectState(
            VmmProcessState::Crashed(status),
        ))) if status.signal() == Some(KILL) => status,
        outcome => outcome?.exit_status,
    };
    println!("ended: {status:?}");
    Ok(())
}

async fn end<E: VmmExecutor>(vm: &mut Machine<E>) -> Result<(), Box<dyn Error>> {
    shut_down(vm, VmShutdownMethod::PauseThenKill).await?;
    Ok(vm.cleanup().await?)
}

fn installation() -> Result<VmmInstallation, Box<dyn Error>> {
    let (program, jailer) = (PathBuf::from(variable("VOLT_VMM")?), PathBuf::from(variable("VOLT_JAILER")?));
    // The third is its editor of snapshots, which is not used.
    Ok(VmmInstallation::new(program.clone(), jailer, program))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1).as_deref() {
        Some("snapshot") => return snapshot::run().await,
        Some("moved") => return moved::run().await,
        _ => {}
    }
    let (uid, gid) = (variable("VOLT_USER")?.parse()?, variable("VOLT_GROUP")?.parse()?);
    let model = VmmOwnershipModel::Downgraded { uid, gid };
    let mut resources = ResourceSystem::new(DirectProcessSpawner, TokioRuntime, model);
    let configuration = configuration(&mut resources)?;
    let executor = executor(variable("VOLT_ID")?)?;
    let mut vm = Machine::prepare(executor, resources, installation()?, configuration).await?;
    vm.start(PATIENCE).await?;
    let info = vm.get_info().await?;
    println!("info: id={} paused={} running={}", info.id, info.is_paused, vm.get_state() == VmState::Running);
    guest_writes(|sector| sector.iter().any(|byte| *byte != 0)).await?;
    end(&mut vm).await
}
