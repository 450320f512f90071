//! Access to KVM. Only this module opens `/dev/kvm`.
//!
//! `vm` and `vcpu` wrap the descriptors, `exit` decodes exits, `msi` sends interrupts. `msr`, `cpuid`, `tsc`,
//! `xsave`, `irqchip` and `clock` save and restore state, and `serde_mirror` defines its format. `host`
//! identifies the host, and `template` changes the CPU that a guest sees.

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
mod pre_fault;
pub(crate) mod template;
mod tsc;
pub mod vcpu;
pub mod vm;
mod xsave;

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

/// `/dev/kvm`, or the number of the error that opening it gave, in a process that leaves the directories of
/// the host.
static KEPT: OnceLock<std::result::Result<File, i32>> = OnceLock::new();

/// Opens `/dev/kvm`, and uses that descriptor, or tells that error, from now on.
#[cfg(any(feature = "internal", test))]
pub fn keep_device() {
    let _ = KEPT.set(open_device().map_err(number_of));
}

/// Creates an empty VM for the next machine of this process, which must not fork before.
///
/// # Errors
/// As [`open`]; or KVM refuses the VM.
#[cfg(any(feature = "internal", test))]
pub fn create_vm_ahead() -> Result<()> {
    vm::VmHandle::create_ahead(&open()?)
}

fn open_device() -> io::Result<File> {
    paths::open("/dev/kvm", OFlags::RDWR, 0)
}

fn number_of(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Opens `/dev/kvm` without a check, for the doctor, which gives its own advice.
pub(crate) fn device() -> std::result::Result<Kvm, kvm_ioctls::Error> {
    let file = match KEPT.get() {
        None => open_device().map_err(number_of),
        Some(kept) => {
            kept.as_ref().map_err(|errno| *errno).and_then(|file| file.try_clone().map_err(number_of))
        }
    };
    let file = file.map_err(kvm_ioctls::Error::new)?;
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
