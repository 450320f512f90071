//! Grants for the host resources that a snapshot names: disks, networks, sockets, and the base of a diff.
//!
//! ```text
//!   granted:  all of it       if the state file has the mark of this user: an HMAC under a key of its own
//!             one resource    if the restore gives another in its place (`Overrides`)
//!             one path        if it lies in a directory that the caller allows, or in the snapshot's own
//!             all taps        if the caller allows them
//! ```
//!
//! File ownership proves nothing: a downloaded snapshot belongs to the caller too. A state file that names no
//! host resource has no mark, and needs none.

mod beneath;
pub(crate) mod key;

use std::path::{Path, PathBuf};

use beneath::LinkPolicy;
use key::{GrantKey, NoKey};

use crate::config::devices::{Devices, NetBackend};
use crate::config::{FileRef, Overrides, SocketPath, VmConfig};
use crate::error::{Cure, Error, Result};
use crate::snapshot::Metadata;
use crate::snapshot::format::manifest;
use crate::snapshot::format::manifest::base_is_missing;
use crate::snapshot::format::place::GrantedBase;

/// The author of a state file.
#[derive(Clone, Debug)]
pub(crate) enum Authorship {
    /// This user's volt-vmm, or the state was never in a file.
    Own,
    /// Unproven, for this reason.
    Foreign(String),
    /// Unchecked: the state names no host resource.
    NoRequests,
}

/// Whether a VM with this configuration, or its snapshot, names a host resource.
fn has_requests(metadata: &Metadata, devices: &Devices) -> bool {
    let Devices {
        disks,
        networks,
        metadata: _,
        policy: _,
        vsock,
        rng: _,
        rng_limit: _,
        balloon: _,
        console,
        on_cmdline: _,
        allow_shared: _,
    } = devices;
    let none = disks.is_empty() && networks.is_empty() && vsock.is_none() && console.is_none();
    metadata.base.is_some() || !none
}

/// The mark for a state file of this user that names a host resource. A user who cannot have a key gets no
/// mark: the snapshot is complete, but a restore must be given its resources.
///
/// # Errors
/// The host fails to read or make the key.
pub(crate) fn mark(metadata: &Metadata, config: &VmConfig, body: &[u8]) -> Result<Option<String>> {
    if !has_requests(metadata, &config.devices) {
        return Ok(None);
    }
    match GrantKey::open_or_make() {
        Ok(key) => Ok(Some(key::hex(&key.mark(body)))),
        Err(NoKey::Failed { path, source }) => {
            Err(Error::file("mark the snapshot with this user's key", path.display(), source))
        }
        Err(NoKey::Lacking(why)) => {
            log::warn!(
                "cannot mark the snapshot as this user's, so a restore must be given its disks, networks \
                 and sockets: {why}"
            );
            Ok(None)
        }
    }
}

/// Finds the author of the state file from which `metadata` and `config` were decoded.
pub(crate) fn origin_of(file: &[u8], metadata: &Metadata, config: &VmConfig) -> Authorship {
    if !has_requests(metadata, &config.devices) {
        return Authorship::NoRequests;
    }
    let Some((body, mark)) = manifest::marked(file) else {
        return Authorship::Foreign("its state.json has no mark that proves its author".to_owned());
    };
    match GrantKey::open().map(|key| key.has_marked(body, &mark)) {
        Ok(true) => Authorship::Own,
        Ok(false) => {
            Authorship::Foreign("its state.json was changed, or written by another user or host".to_owned())
        }
        Err(why) => Authorship::Foreign(why),
    }
}

impl Authorship {
    /// Whether a state file derived from this one may have this user's mark.
    pub fn can_be_marked(&self) -> bool {
        !matches!(self, Self::Foreign(_))
    }
}

/// Decides the grants of one restore.
pub(crate) struct Grants<'a> {
    /// Author of the state file.
    pub origin: &'a Authorship,
    /// The snapshot's directory.
    pub snapshot: &'a Path,
    /// Directories that the caller allows.
    pub allowed: &'a [PathBuf],
    /// Whether the caller allows taps.
    pub taps: bool,
}

/// Looks up a path in a directory.
type PathLookup<T> = fn(&Path, &Path, LinkPolicy) -> Option<T>;

impl<'a> Grants<'a> {
    /// Grants paths in these directories, and no tap.
    pub fn of_paths(origin: &'a Authorship, snapshot: &'a Path, allowed: &'a [PathBuf]) -> Self {
        Self { origin, snapshot, allowed, taps: false }
    }
}

impl Grants<'_> {
    /// Checks the directory of a diff's base. Returns its path; if it had to be checked, with the open
    /// directory and its real path.
    ///
    /// # Errors
    /// The directory is not granted, or the allowed directory lacks it.
    pub fn check_base(&self, base: &Path) -> Result<GrantedBase> {
        if matches!(self.origin, Authorship::Foreign(_))
            && self.allowed.iter().any(|directory| beneath::lacks(directory, base))
        {
            return Err(base_is_missing(self.snapshot, base));
        }
        let about = || (format!("its base {}", base.display()), None);
        Ok(match self.find(base, beneath::dir, about)? {
            Some((path, held)) => GrantedBase { path, held: Some(held) },
            None => GrantedBase { path: base.to_owned(), held: None },
        })
    }

    /// Checks the host resources that the snapshot's `devices` name and `given` does not replace. A resource
    /// granted by its path gets its real path, without links.
    ///
    /// # Errors
    /// Names the first resource that is not granted, the reason, and how to grant it.
    pub fn check_devices(&self, devices: &mut Devices, given: &Overrides) -> Result<()> {
        let Authorship::Foreign(_) = self.origin else { return Ok(()) };
        for disk in &mut devices.disks {
            if given.disks.iter().any(|given| given.id == disk.id && given.has_image()) {
                continue;
            }
            let id = disk.id.clone();
            for file in disk.image_mut() {
                let about = || (format!("disk {id}: {file}"), Some(Cure::DiskPath { id: id.clone() }));
                let checked = match &*file {
                    FileRef::Path(path) => match self.find(path, beneath::file, about)? {
                        Some(found) => FileRef::Checked(found),
                        None => continue,
                    },
                    FileRef::Checked(_) | FileRef::Fd(_) | FileRef::Untrusted(_) => {
                        return Err(self.refused(about(), false));
                    }
                };
                *file = checked;
            }
        }
        for network in &devices.networks {
            if given.networks.iter().any(|given| given.id == network.id && given.backend.is_some()) {
                continue;
            }
            let id = network.id.clone();
            let (resource, cure) = match &network.backend {
                NetBackend::Tap(_) if self.taps => continue,
                NetBackend::Tap(name) => (format!("network {id}: tap {name}"), Cure::Tap { id }),
                NetBackend::TapDescriptor(number) => {
                    (format!("network {id}: tap fd:{number}"), Cure::Tap { id })
                }
                NetBackend::Nat {} => (format!("network {id}: this host's network (nat)"), Cure::Nat { id }),
                NetBackend::Passt { forward } if forward.is_empty() => {
                    (format!("network {id}: this host's network (passt)"), Cure::Passt { id })
                }
                NetBackend::Passt { forward } => {
                    let ports: Vec<_> = forward.iter().map(|(host, _)| host.to_string()).collect();
                    let ports = ports.join(", ");
                    let resource = format!("network {id}: this host's network (passt) with ports {ports}");
                    (resource, Cure::ForwardedPorts { id })
                }
            };
            return Err(self.refused((resource, Some(cure)), false));
        }
        let socket = |path: &mut SocketPath, device: &str, cure: Cure| -> Result<()> {
            let about = || (format!("{device} socket {path}"), Some(cure));
            if let Some(real) = self.find(path.as_path(), beneath::socket, about)? {
                *path = real;
            }
            Ok(())
        };
        if let Some(vsock) = &mut devices.vsock
            && given.vsock.as_ref().is_none_or(|given| given.socket.is_none())
        {
            socket(&mut vsock.socket, "vsock", Cure::VsockSocket)?;
        }
        if let Some(console) = &mut devices.console
            && given.console.is_none()
        {
            socket(&mut console.socket, "console", Cure::ConsoleSocket)?;
        }
        Ok(())
    }

    /// Looks up a path with `find` in the allowed directories and the snapshot's own. Returns nothing if the
    /// whole snapshot is granted.
    fn find<T>(
        &self,
        path: &Path,
        find: PathLookup<T>,
        about: impl FnOnce() -> (String, Option<Cure>),
    ) -> Result<Option<T>> {
        let Authorship::Foreign(_) = self.origin else { return Ok(None) };
        let own = || find(self.snapshot, path, LinkPolicy::None);
        let allowed = self.allowed.iter().find_map(|directory| find(directory, path, LinkPolicy::Inside));
        allowed.or_else(own).map(Some).ok_or_else(|| self.refused(about(), true))
    }

    fn refused(&self, (resource, replacement): (String, Option<Cure>), is_path: bool) -> Error {
        let reason = match self.origin {
            Authorship::Foreign(reason) => reason.clone(),
            Authorship::Own | Authorship::NoRequests => String::new(),
        };
        let cures = replacement.into_iter().chain(is_path.then_some(Cure::AllowedDirectory)).collect();
        Error::NotGranted { path: self.snapshot.to_owned(), resource, reason, cures }
    }
}
