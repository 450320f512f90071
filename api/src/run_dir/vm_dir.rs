//! The directory of one VM, as other processes read it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use volt_vmm::VmConfig;

use super::name::VmName;
use super::outcome::{self, EndOfVm};
use super::record::Record;
use super::root::RunRoot;
use super::{files, lock};
use crate::failure::Failure;

/// A VM with a name, alive or ended.
#[derive(Debug)]
pub(crate) struct VmDir {
    path: PathBuf,
    pub(crate) record: Record,
    lock: File,
    /// Opened with the lock, so that it is this VM's even if another one gets the name.
    outcome: File,
}

impl VmDir {
    /// Opens the directory of `name`. Returns `None` if there is none, one that is being made or removed, or
    /// one whose VM never started and never will.
    pub(super) fn open(root: &RunRoot, name: &str) -> Option<Self> {
        let path = root.path().join(name);
        let record = read_record(&path)?;
        let open = |name: &str| File::options().read(true).write(true).open(path.join(name)).ok();
        let (lock, outcome) = (open(files::LOCK)?, open(files::OUTCOME)?);
        let vm = Self { path, record, lock, outcome };
        (vm.record.pid.is_some() || vm.is_alive()).then_some(vm)
    }

    pub(crate) fn name(&self) -> &VmName {
        &self.record.name
    }

    /// The path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether a process of the VM lives, or one that starts it.
    pub(crate) fn is_alive(&self) -> bool {
        // A lock that cannot be examined protects the directory.
        lock::is_held(&self.lock).unwrap_or(true)
    }

    /// Waits until all processes of the VM have ended. Returns its end.
    ///
    /// # Errors
    /// The host refuses to wait.
    pub(crate) fn wait(&self) -> Result<EndOfVm, Failure> {
        let waited = lock::wait_free(&self.lock);
        waited.map_err(|error| Failure::system(format!("wait for VM {}", self.name()), error))?;
        Ok(self.outcome())
    }

    /// The end of the VM. Returns `None` while it lives.
    pub(crate) fn end(&self) -> Option<EndOfVm> {
        (!self.is_alive()).then(|| self.outcome())
    }

    fn outcome(&self) -> EndOfVm {
        self.recorded_end().unwrap_or_else(EndOfVm::without_record)
    }

    fn recorded_end(&self) -> Option<EndOfVm> {
        let mut text = vec![0; self.outcome.metadata().ok()?.len() as usize];
        self.outcome.read_exact_at(&mut text, 0).ok()?;
        EndOfVm::parse(str::from_utf8(&text).ok()?)
    }

    /// Whether it is recorded how the VM ended. Its process may still live, to finish a snapshot.
    pub(crate) fn has_outcome(&self) -> bool {
        self.recorded_end().is_some()
    }

    /// Whether a process has taken the directory over for its VM, by now.
    pub(crate) fn has_started(&self) -> bool {
        let is_taken = |record: Record| record.id == self.record.id && record.pid.is_some();
        self.record.pid.is_some() || self.has_outcome() || read_record(&self.path).is_some_and(is_taken)
    }

    /// Records an end that this process saw, unless the VM's process did.
    pub(crate) fn record_end(&self, end: &EndOfVm) {
        if self.recorded_end().is_none() {
            // After an error, readers find no outcome, as before.
            let _ = outcome::write(&self.outcome, end);
        }
    }

    /// The configuration of the VM, once it has run.
    pub(crate) fn config(&self) -> Option<VmConfig> {
        serde_json::from_slice(&fs::read(self.file(files::CONFIG)).ok()?).ok()
    }
}

/// Whether a process holds the lock in a directory, or may: a lock that cannot be examined protects it.
pub(super) fn is_held(directory: &Path) -> bool {
    match File::options().read(true).write(true).open(directory.join(files::LOCK)) {
        Ok(file) => lock::is_held(&file).unwrap_or(true),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Reads the record in a directory.
pub(super) fn read_record(directory: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(directory.join(files::RECORD)).ok()?).ok()
}

/// Writes the record into a directory, so that a reader finds the old one or the new one whole.
pub(super) fn write_record(directory: &Path, record: &Record) -> io::Result<()> {
    let new = directory.join(files::NEW_RECORD);
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    fs::rename(new, directory.join(files::RECORD))
}
