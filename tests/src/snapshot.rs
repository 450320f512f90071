//! Snapshots on disk: restores, conversions and edits.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom as From};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::SeekFrom;
use serde_json::Value;

use crate::damage::overwrite;
use crate::faults::Injector;
use crate::guest::Guest;
use crate::kvm_shim::KvmShim;
use crate::launch::{Input, Launch};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::pressure::{MemoryLimit, Pressure};
use crate::program::binary;
use crate::scratch::Scratch;
use crate::state_file;

/// Bytes of a page of guest memory.
const PAGE: usize = 4096;

/// A snapshot directory.
#[derive(Clone, Debug)]
pub struct Snapshot {
    directory: PathBuf,
    scratch: Scratch,
}

impl Snapshot {
    /// Refers to an existing snapshot.
    #[must_use]
    pub fn at(directory: PathBuf, scratch: &Scratch) -> Self {
        Self { directory, scratch: scratch.clone() }
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of `state.json`.
    #[must_use]
    pub fn state_path(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    /// Returns the path of `memory.pack` if it exists, otherwise that of `memory.snap`.
    #[must_use]
    pub fn memory_path(&self) -> PathBuf {
        let packed = self.directory.join("memory.pack");
        if packed.exists() { packed } else { self.directory.join("memory.snap") }
    }

    /// Converts the snapshot with these options of `volt-vmm snapshot convert`.
    ///
    /// # Panics
    /// The conversion fails.
    #[must_use]
    pub fn converted(&self, options: &[&str]) -> Self {
        let converted = Self::at(self.scratch.fresh("converted"), &self.scratch);
        self.try_convert(&converted.directory, options).succeeded();
        converted
    }

    /// Converts the snapshot to a path that may be refused.
    #[must_use]
    pub fn try_convert(&self, to: &Path, options: &[&str]) -> Outcome {
        let words = ["snapshot", "convert"].map(OsStr::new);
        let dirs = [self.directory.as_os_str(), to.as_os_str()];
        Outcome::of(words.into_iter().chain(dirs).chain(options.iter().map(OsStr::new)))
    }

    /// Runs `volt-vmm snapshot verify`.
    #[must_use]
    pub fn verify(&self) -> Outcome {
        self.verify_as(&[])
    }

    /// Runs `volt-vmm snapshot verify` with these options.
    #[must_use]
    pub fn verify_as(&self, options: &[&str]) -> Outcome {
        let words = ["snapshot".as_ref(), "verify".as_ref(), self.directory.as_os_str()];
        Outcome::of(words.into_iter().chain(options.iter().map(OsStr::new)))
    }

    /// Runs `volt-vmm snapshot inspect` with these options and returns its output.
    #[must_use]
    pub fn inspect(&self, options: &[&str]) -> String {
        let words = ["snapshot".as_ref(), "inspect".as_ref(), self.directory.as_os_str()];
        Outcome::of(words.into_iter().chain(options.iter().map(OsStr::new))).succeeded().stdout.clone()
    }

    /// Restores the snapshot.
    #[must_use]
    pub fn restore(&self) -> Guest {
        self.restore_with(Input::Test)
    }

    /// Restores the snapshot with these options of `volt-vmm restore`.
    #[must_use]
    pub fn restore_as(&self, options: &[&str]) -> Guest {
        self.launch(None, &KvmShim::new(), options)
    }

    /// Restores the snapshot in a namespace.
    #[must_use]
    pub fn restore_inside(&self, namespace: &Namespace, options: &[&str]) -> Guest {
        self.launch(Some(namespace), &KvmShim::new(), options)
    }

    /// Restores the snapshot on another KVM.
    #[must_use]
    pub fn restore_on(&self, shim: &KvmShim, options: &[&str]) -> Guest {
        self.launch(None, shim, options)
    }

    /// Restores the snapshot with limited memory for the VM and a pager that it starts.
    #[must_use]
    pub fn restore_under(&self, pressure: &Pressure, options: &[&str]) -> Guest {
        let (arguments, socket) = self.restore_arguments(options);
        Launch { pressure: Some(pressure), ..Launch::of(arguments) }.start(self.scratch.clone(), socket)
    }

    /// Restores the snapshot with limited memory for the VM and a pager that it starts. The kernel kills one
    /// of them if they need more.
    #[must_use]
    pub fn restore_limited(&self, limit: &MemoryLimit, options: &[&str]) -> Guest {
        let (arguments, socket) = self.restore_arguments(options);
        Launch { limit: Some(limit), ..Launch::of(arguments) }.start(self.scratch.clone(), socket)
    }

    /// Restores the snapshot and lets the test fail system calls of the VM and its descendants.
    #[must_use]
    pub fn restore_with_faults(&self, faults: &Injector, options: &[&str]) -> Guest {
        let (arguments, socket) = self.restore_arguments(options);
        Launch { faults: Some(faults), ..Launch::of(arguments) }.start(self.scratch.clone(), socket)
    }

    fn launch(&self, namespace: Option<&Namespace>, shim: &KvmShim, options: &[&str]) -> Guest {
        let (arguments, socket) = self.restore_arguments(options);
        Launch { namespace, shim: shim.clone(), ..Launch::of(arguments) }.start(self.scratch.clone(), socket)
    }

    /// Returns the arguments of `volt-vmm restore` and the path of the API's socket.
    fn restore_arguments(&self, options: &[&str]) -> (Vec<OsString>, PathBuf) {
        let socket = self.scratch.fresh("api");
        let mut arguments: Vec<OsString> = vec!["restore".into(), self.directory.clone().into()];
        arguments.extend(options.iter().map(Into::into));
        arguments.extend(["--api-socket".into(), socket.clone().into()]);
        (arguments, socket)
    }

    /// Restores the snapshot with this console input.
    #[must_use]
    pub fn restore_with(&self, input: Input<'_>) -> Guest {
        let socket = self.scratch.fresh("api");
        let arguments =
            ["--restore".into(), self.directory.clone().into(), "--api-socket".into(), socket.clone().into()];
        Launch { input, ..Launch::of(arguments.to_vec()) }.start(self.scratch.clone(), socket)
    }

    /// Restores a snapshot that must be refused.
    #[must_use]
    pub fn try_restore(&self) -> Outcome {
        Outcome::of_refusal(Command::new(binary()).arg("--restore").arg(&self.directory))
    }

    /// Restores a snapshot that must be refused, with these options of `volt-vmm restore`.
    #[must_use]
    pub fn try_restore_as(&self, options: &[&str]) -> Outcome {
        let mut command = Command::new(binary());
        Outcome::of_refusal(command.arg("restore").arg(&self.directory).args(options))
    }

    /// Restores a snapshot that must be refused, on another KVM.
    #[must_use]
    pub fn try_restore_on(&self, shim: &KvmShim) -> Outcome {
        let mut command = Command::new(binary());
        command.arg("restore").arg(&self.directory);
        shim.apply(&mut command);
        Outcome::of_refusal(&mut command)
    }

    /// Copies the snapshot, so a test can damage the copy.
    ///
    /// # Panics
    /// A file cannot be copied.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::at(self.scratch.fresh("copy"), &self.scratch);
        fs::create_dir(&copy.directory).expect("create a directory");
        let files = fs::read_dir(&self.directory)
            .expect("list a snapshot")
            .map(|entry| entry.expect("an entry").path());
        let layers = files.filter(|path| path.extension().is_some_and(|extension| extension == "layer"));
        for from in [self.state_path(), self.memory_path()].into_iter().chain(layers) {
            let name = from.file_name().expect("a file's path");
            fs::copy(&from, copy.directory.join(name)).expect("copy a snapshot");
        }
        copy
    }

    /// Merges this diff with its base.
    #[must_use]
    pub fn merged(&self) -> Self {
        let merged = Self::at(self.scratch.fresh("merged"), &self.scratch);
        let words =
            ["snapshot".as_ref(), "merge".as_ref(), self.directory.as_os_str(), merged.directory.as_os_str()];
        Outcome::of(words).succeeded();
        merged
    }

    /// Returns the path of `memory.diff`.
    #[must_use]
    pub fn diff_path(&self) -> PathBuf {
        self.directory.join("memory.diff")
    }

    /// Removes the snapshot. Restored VMs keep its files open.
    ///
    /// # Panics
    /// The directory cannot be removed.
    pub fn remove(self) {
        fs::remove_dir_all(&self.directory).expect("remove a snapshot");
    }

    /// Returns the decoded `state.json`.
    ///
    /// # Panics
    /// The file is no JSON.
    #[must_use]
    pub fn state(&self) -> Value {
        serde_json::from_slice(&fs::read(self.state_path()).expect("read state.json"))
            .expect("state.json is JSON")
    }

    /// Changes `state.json` and gives it a right checksum.
    ///
    /// # Panics
    /// The file cannot be read or written.
    pub fn edit(&self, change: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        change(&mut state);
        overwrite(self.state_path(), state_file::sealed(state));
    }

    /// Returns the facts that a restore must not change: length, times, inode and content of both files.
    ///
    /// # Panics
    /// A file cannot be read.
    #[must_use]
    pub fn fingerprint(&self) -> Vec<(u64, i64, i64, u64, u64)> {
        let of = |path: PathBuf| {
            let mut file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let metadata = file.metadata().expect("metadata of an open file");
            let sum = checksum_of_data(&mut file, metadata.len());
            (metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino(), sum)
        };
        [self.state_path(), self.memory_path()].map(of).to_vec()
    }
}

impl Guest {
    /// Takes a snapshot with `volt-vmm snapshot create`.
    ///
    /// # Panics
    /// The command fails.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_as(&[])
    }

    /// Takes a snapshot with these options of `volt-vmm snapshot create`.
    #[must_use]
    pub fn snapshot_as(&self, options: &[&str]) -> Snapshot {
        let directory = self.scratch().fresh("snapshot");
        self.try_snapshot_as(&directory, options).succeeded();
        Snapshot::at(directory, self.scratch())
    }
}

/// Computes a checksum over all pages that are not zero, and their positions. A page of zeroes equals a hole:
/// in a tmpfs, a guest's read of a hole puts one there.
fn checksum_of_data(file: &mut File, len: u64) -> u64 {
    let (mut digest, mut page) = (state_file::CRC.digest(), vec![0; PAGE]);
    let mut at = 0;
    while at < len {
        let Ok(start) = rustix::fs::seek(&*file, SeekFrom::Data(at)) else { break };
        at = rustix::fs::seek(&*file, SeekFrom::Hole(start)).expect("look for a hole");
        file.seek(From::Start(start)).expect("go to data of a snapshot");
        for position in (start..at).step_by(PAGE) {
            let data = &mut page[..PAGE.min((at - position) as usize)];
            file.read_exact(data).expect("read a snapshot");
            if data.iter().any(|byte| *byte != 0) {
                digest.update(&position.to_le_bytes());
                digest.update(data);
            }
        }
    }
    digest.finalize()
}
