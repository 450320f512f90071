//! The record of a VM: the facts that hold from its start to its end.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use volt_job::job::Process;
use volt_vmm::internal::random_hex;

use super::files;
use super::forward::Forward;
use super::name::VmName;

/// Digits of an id.
const ID_DIGITS: usize = 12;

/// A VM with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// 12 random hexadecimal digits.
    pub(crate) id: String,
    pub(crate) name: VmName,
    /// Time of the start, RFC 3339 in UTC.
    pub(crate) created: String,
    /// The VM's process; that of its keeper if it is strictly confined. Absent until it has started.
    pub(crate) pid: Option<u32>,
    pub(crate) api_socket: PathBuf,
    pub(crate) origin: Origin,
    /// Whether the directory is removed at the VM's end.
    #[serde(default)]
    pub(crate) removed_at_end: bool,
    /// The directory with the VM's own disks, which is removed with the run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<PathBuf>,
    /// The main process, if the VM runs an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) main: Option<MainOfImage>,
    /// Ports of the host that lead to the VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<Forward>,
}

/// The main process of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MainOfImage {
    /// Whether its streams are a terminal.
    pub(crate) is_terminal: bool,
    /// Whether it takes input.
    pub(crate) is_interactive: bool,
    /// Whether it is process 1, whose streams are those of the serial port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_init: bool,
    /// Its variables, working directory and user, which further commands have too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) env: Vec<String>,
    pub(crate) cwd: String,
    pub(crate) user: String,
}

impl MainOfImage {
    /// Describes a main process.
    pub(crate) fn of(process: &Process) -> Self {
        let Process { terminal, stdin, is_init, env, cwd, user, .. } = process;
        let (env, cwd, user) = (env.clone(), cwd.clone(), user.clone());
        Self { is_terminal: *terminal, is_interactive: *stdin, is_init: *is_init, env, cwd, user }
    }
}

/// The facts that the starting process knows about a VM.
#[derive(Clone, Debug)]
pub(crate) struct NewRecord {
    pub(crate) origin: Origin,
    /// The VM's API, if it is not in its directory.
    pub(crate) api_socket: Option<PathBuf>,
    pub(crate) removed_at_end: bool,
    /// The directory with the VM's own disks.
    pub(crate) data: Option<PathBuf>,
    /// The main process, if the VM runs an image.
    pub(crate) main: Option<MainOfImage>,
    /// Ports of the host that lead to the VM.
    pub(crate) ports: Vec<Forward>,
}

impl NewRecord {
    /// A VM whose API is in its directory, which stays.
    pub(crate) fn of(origin: Origin) -> Self {
        Self { origin, api_socket: None, removed_at_end: false, data: None, main: None, ports: Vec::new() }
    }
}

/// The state that a VM started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// A kernel that booted.
    Kernel(String),
    /// An image of this name.
    Image(String),
    /// A snapshot.
    Snapshot(PathBuf),
    /// The VM of this name or API socket that was forked.
    Fork(String),
}

impl Origin {
    /// The origin in a table.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Kernel(kernel) => name_of(kernel.as_ref()),
            Self::Image(image) => image.clone(),
            Self::Snapshot(path) => format!("snapshot {}", name_of(path)),
            Self::Fork(parent) => format!("fork of {parent}"),
        }
    }
}

impl Record {
    /// The main process of an image, unless its streams are those of the serial port.
    pub(crate) fn main_with_streams(&self) -> Option<&MainOfImage> {
        self.main.as_ref().filter(|main| !main.is_init)
    }

    /// The record without the variables of the main process, which may be secrets.
    pub(crate) fn without_variables(mut self) -> Self {
        self.main.iter_mut().for_each(|main| main.env.clear());
        self
    }

    /// Begins the record of a VM in `directory`.
    ///
    /// # Errors
    /// The host has no random bytes.
    pub(super) fn begin(name: VmName, directory: &Path, new: NewRecord) -> volt_vmm::Result<Self> {
        let NewRecord { origin, api_socket, removed_at_end, data, main, ports } = new;
        let mut id = random_hex()?;
        id.truncate(ID_DIGITS);
        let api_socket = api_socket.unwrap_or_else(|| directory.join(files::API));
        let (created, pid) = (now(), None);
        Ok(Self { id, name, created, pid, api_socket, origin, removed_at_end, data, main, ports })
    }
}

/// The last component of a path.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).display().to_string()
}

/// The time in RFC 3339, to the second.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
