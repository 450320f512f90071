//! Opens a snapshot, once, and restores any number of VMs from it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::lineage::Lineage;
use super::memory::Memory;
use super::{Metadata, STATE_FILE, layers, manifest, relative};
use crate::config::{Overrides, VmConfig};
use crate::console::Console;
use crate::error::{Error, Result};
use crate::kvm::host::Host;
use crate::kvm::{self, cpuid};
use crate::machine::{Machine, MachineState};
use crate::memory::backing::{Backing, OtherPages};
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use crate::pool::{Pool, Shape};
use crate::shell::{FirstVcpu, Shell};
use crate::store::Store;
use crate::timing::step_done;
use crate::vm::Vm;

/// Bytes. 32 vCPUs with all their devices take a hundredth of this.
const LARGEST_STATE: u64 = 256 << 20;

/// An opened snapshot: verified, and fit for this host. Shared by everything restored from it; nothing of it is ever
/// modified.
#[derive(Debug)]
pub struct Snapshot {
    path: PathBuf,
    metadata: Metadata,
    config: VmConfig,
    machine: MachineState,
    memory: Memory,
    /// Those of a diff.
    over: Option<OtherPages>,
    lineage: Option<Lineage>,
    layers: layers::Source,
}

/// How a VM is to come back.
#[derive(Debug)]
pub struct RestoreOptions {
    /// Where its serial output goes.
    pub console: Console,
    /// Whether it runs at once, or waits for [`Vm::resume`].
    pub resume: bool,
    /// Whether the caller will run the first vCPU on a thread of its own with [`Vm::lend_thread`], which saves starting
    /// one. Until then the guest stands still.
    pub lent_thread: bool,
    /// What is different for this VM.
    pub overrides: Overrides,
    /// Where a VM may be ready. Of another shape, or empty, it is left alone, and a VM is made.
    pub pool: Option<Arc<Pool>>,
}

impl Default for RestoreOptions {
    /// Running, its output discarded.
    fn default() -> Self {
        Self {
            console: Console::discard(),
            resume: true,
            lent_thread: false,
            overrides: Overrides::default(),
            pool: None,
        }
    }
}

impl Snapshot {
    /// Opens and verifies the snapshot `name`.
    ///
    /// # Errors
    /// [`Error::Snapshot`] when it is missing, damaged, of a newer version, or its files do not belong together;
    /// [`Error::HostCpu`] when its guest was shown CPU features that this host lacks.
    pub fn open(store: &Store, name: &str) -> Result<Self> {
        let path = store.path_of(name)?;
        let (manifest, _) = read_manifest(&path)?;
        step_done("state load, CRC, parse");
        let manifest::Manifest { metadata, config, machine, .. } = manifest;
        let (memory, over, lineage) = relative::open(&path, &metadata)?;
        let layers = layers::Source::Directory(path.clone());
        let snapshot = Self { path, metadata, config, machine, memory, over, lineage, layers };
        snapshot.check_host()?;
        step_done("host check");
        Ok(snapshot)
    }

    /// One that is nowhere but here: what VMs are forked from.
    pub(super) fn in_memory(
        (metadata, config, machine): (Metadata, VmConfig, MachineState),
        (memory, over): (Arc<File>, Option<OtherPages>),
        lineage: Option<Lineage>,
        layers: BTreeMap<String, File>,
    ) -> Self {
        let path = PathBuf::from("of a running VM");
        let memory = Memory::Raw(memory, path.clone());
        let layers = layers::Source::Held(layers);
        Self { path, metadata, config, machine, memory, over, lineage, layers }
    }

    /// What it says about itself.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All but memory.
    pub(super) fn machine(&self) -> &MachineState {
        &self.machine
    }

    /// Its memory, or its base's, and the pages over it if it is a diff.
    pub(super) fn memory(&self) -> (&Memory, Option<&OtherPages>) {
        (&self.memory, self.over.as_ref())
    }

    /// What its VM was made from.
    #[must_use]
    pub fn config(&self) -> &VmConfig {
        &self.config
    }

    /// Restores a VM, running, its serial output discarded.
    ///
    /// # Errors
    /// As [`Snapshot::restore_with`].
    pub fn restore(&self) -> Result<Vm> {
        self.restore_with(RestoreOptions::default())
    }

    /// Restores a VM.
    ///
    /// # Errors
    /// The host refuses memory, a VM, or a part of the state.
    pub fn restore_with(&self, options: RestoreOptions) -> Result<Vm> {
        let mut config = self.config.clone();
        let given = options.overrides.disks.iter().filter(|disk| disk.layer.is_some());
        let placed = given.map(|disk| disk.id.clone()).collect();
        options.overrides.apply(&mut config.devices)?;
        let layers = layers::bring(&self.layers, &mut config.devices, &placed)?;
        let backing = Backing::Private { base: self.memory.base()?, pages: self.over.clone() };
        let first = if options.lent_thread { FirstVcpu::LentThread } else { FirstVcpu::OwnThread };
        let shell = shell(&config, backing, options.pool.as_deref(), first)?;
        let mut machine = Machine::new(shell, &config.devices, options.console)?;
        machine.restore(&self.machine).map_err(|source| Error::Restore {
            path: self.path.join(STATE_FILE),
            source: Box::new(source),
        })?;
        layers.keep();
        let vm = Vm::of(machine, config, self.lineage.clone());
        if options.resume {
            vm.resume()?;
            step_done("resume");
        }
        Ok(vm)
    }

    /// On the host of the snapshot, or its twin, there is nothing to compare.
    fn check_host(&self) -> Result<()> {
        if Host::this() == self.metadata.host {
            return Ok(());
        }
        let supported = cpuid::supported(&kvm::open()?)?;
        let mut missing: Vec<String> =
            self.machine.vcpus.iter().flat_map(|vcpu| cpuid::missing(&vcpu.cpuid, &supported)).collect();
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort();
        missing.dedup();
        Err(Error::HostCpu { path: self.path.clone(), missing: missing.join(", ") })
    }
}

/// Reads and verifies a snapshot's state file. Returns its bytes too.
/// An empty VM with this memory: one that was made ahead of time, or a new one.
fn shell(config: &VmConfig, backing: Backing, pool: Option<&Pool>, first: FirstVcpu) -> Result<Shell> {
    if let Some(shell) = pool.and_then(|pool| pool.take(Shape::of(config))) {
        step_done("shell from the pool");
        backing.map(&shell.ram)?;
        return Ok(shell);
    }
    let ram = GuestRam::reserve(config.memory_bytes())?;
    backing.map(&ram)?;
    Shell::new(ram, config.vcpus, config.irqchip, first)
}

pub(super) fn read_manifest(snapshot: &Path) -> Result<(manifest::Manifest, Vec<u8>)> {
    let path = snapshot.join(STATE_FILE);
    let file = read_state(snapshot, &path)?;
    let manifest = manifest::decode(&file).map_err(|problem| Error::snapshot(&path, problem))?;
    let manifest::Manifest { metadata, config, .. } = &manifest;
    config.validate().map_err(|error| Error::snapshot(&path, error.to_string()))?;
    if metadata.memory_bytes != config.memory_bytes() || metadata.vcpus != config.vcpus {
        return Err(Error::snapshot(path, "contradicts itself about memory or vCPUs"));
    }
    Ok((manifest, file))
}

fn read_state(snapshot: &Path, path: &Path) -> Result<Vec<u8>> {
    let (mut file, len) = open_regular(snapshot, path)?;
    if len > LARGEST_STATE {
        return Err(Error::snapshot(path, format!("is {len} bytes long, more than a state file can be")));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.read_to_end(&mut bytes).map_err(|source| Error::file("read", path.display(), source))?;
    Ok(bytes)
}

/// Opens a file of the snapshot, which must be a regular one, and tells its length. A pipe is not waited for.
pub(super) fn open_regular(snapshot: &Path, path: &Path) -> Result<(File, u64)> {
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|source| missing(snapshot, path, source))?;
    let metadata = file.metadata().map_err(|source| Error::file("look at", path.display(), source))?;
    if !metadata.is_file() {
        return Err(Error::snapshot(path, "is not a regular file"));
    }
    Ok((file, metadata.len()))
}

/// A file that should be there and cannot be opened.
fn missing(snapshot: &Path, file: &Path, source: std::io::Error) -> Error {
    match source.kind() {
        std::io::ErrorKind::NotFound if !snapshot.exists() => {
            Error::snapshot(snapshot, "there is no such directory")
        }
        std::io::ErrorKind::NotFound => Error::snapshot(file, "is missing"),
        std::io::ErrorKind::NotADirectory => Error::snapshot(snapshot, "is not a directory"),
        _ => Error::file("open", file.display(), source),
    }
}
