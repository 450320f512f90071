//! Access to KVM. Only this module opens `/dev/kvm`.
//!
//! `vm` and `vcpu` wrap the descriptors, `exit` decodes exits, `msi` sends interrupts. `msr`, `cpuid`, `tsc`,
//! `xsave`, `irqchip` and `clock` save and restore state, and `serde_mirror` defines its format. `host`
//! identifies the host.

pub(crate) mod serde_mirror;

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::OnceLock;

use kvm_ioctls::{Cap, Kvm};
use rustix::fs::OFlags;

use crate::error::{Error, Result};
use crate::paths;

pub mod clock;
pub mod cpuid;
pub(crate) mod exit;
pub mod host;
pub mod irqchip;
pub(crate) mod msi;
pub mod msr;
mod tsc;
pub mod vcpu;
pub mod vm;
mod xsave;

const DEVICE: &str = "/dev/kvm";

/// The version of the stable KVM API (KVM API, section 4.1).
pub(crate) const API_VERSION: i32 = 12;

/// Opens `/dev/kvm`, and checks its API version.
///
/// # Errors
/// [`Error::NoKvm`], with a cure.
pub fn open() -> Result<Kvm> {
    let kvm = device().map_err(|errno| no_kvm(io::Error::from_raw_os_error(errno.errno())))?;
    if kvm.get_api_version() == API_VERSION {
        return Ok(kvm);
    }
    let advice = "it does not have version 12 of the KVM API; use a kernel newer than 2.6.22";
    Err(Error::NoKvm { advice, source: io::ErrorKind::Unsupported.into() })
}

/// `/dev/kvm`, open in a process that left the directories of the host.
static KEPT: OnceLock<File> = OnceLock::new();

/// Opens `/dev/kvm`, and uses that descriptor from now on. If it cannot be opened, each call tries again.
#[cfg(feature = "internal")]
pub fn keep_device() {
    if let Ok(file) = paths::open(DEVICE, OFlags::RDWR, 0) {
        let _ = KEPT.set(file);
    }
}

/// Opens `/dev/kvm` without a check, for the doctor, which gives its own advice.
pub(crate) fn device() -> std::result::Result<Kvm, kvm_ioctls::Error> {
    let file = KEPT.get().map_or_else(|| paths::open(DEVICE, OFlags::RDWR, 0), File::try_clone);
    let file = file.map_err(|error| kvm_ioctls::Error::new(error.raw_os_error().unwrap_or(libc::EIO)))?;
    // SAFETY: the descriptor is open, and has no other owner from here on.
    #[allow(unsafe_code)]
    Ok(unsafe { Kvm::from_raw_fd(file.into_raw_fd()) })
}

fn no_kvm(source: io::Error) -> Error {
    let advice = match source.kind() {
        io::ErrorKind::NotFound => {
            "it is missing; load kvm_intel or kvm_amd, and enable virtualisation in the firmware, or nested \
             virtualisation if this host is a VM"
        }
        io::ErrorKind::PermissionDenied => "this user may not open it; join the group kvm, or run as root",
        _ => "it cannot be opened",
    };
    Error::NoKvm { advice, source }
}

/// Turns an error of KVM into [`Error::Kvm`], which names the call.
pub(crate) trait KvmContext<T> {
    fn context(self, call: &str) -> Result<T>;
}

impl<T> KvmContext<T> for std::result::Result<T, kvm_ioctls::Error> {
    fn context(self, call: &str) -> Result<T> {
        self.map_err(|errno| kvm_error(call, errno))
    }
}

pub(crate) fn kvm_error(call: &str, errno: kvm_ioctls::Error) -> Error {
    Error::Kvm { call: call.to_owned(), source: io::Error::from_raw_os_error(errno.errno()) }
}

/// Whether KVM offers the TSC-deadline timer. kvm_amd reports it here, and not in its supported CPUID.
pub(crate) fn has_tsc_deadline(kvm: &Kvm) -> bool {
    kvm.check_extension(Cap::TscDeadlineTimer)
}
