//! KVM, and the only module that opens `/dev/kvm`.
//!
//! `vm` and `vcpu` wrap the descriptors, `exit` turns exits into values, `msi` sends interrupts, `msr`, `cpuid`, `tsc`, `xsave`, `irqchip` and
//! `clock` know what there is to save, `mirror` how it is written down.

pub(crate) mod serde_mirror;

use std::io;

use kvm_ioctls::{Cap, Kvm};

use crate::error::{Error, Result};

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

/// The only API version there is (KVM API, section 4.1).
pub(crate) const API_VERSION: i32 = 12;

/// Opens `/dev/kvm`.
///
/// # Errors
/// [`Error::NoKvm`] says what to do about it.
pub fn open() -> Result<Kvm> {
    let kvm = device().map_err(|errno| no_kvm(io::Error::from_raw_os_error(errno.errno())))?;
    if kvm.get_api_version() == API_VERSION {
        return Ok(kvm);
    }
    let advice = "it does not speak KVM's stable API, version 12; a kernel newer than 2.6.22 does";
    Err(Error::NoKvm { advice, source: io::ErrorKind::Unsupported.into() })
}

/// Opens `/dev/kvm`, whatever it is: for the doctor, who has advice of its own.
pub(crate) fn device() -> std::result::Result<Kvm, kvm_ioctls::Error> {
    Kvm::new()
}

fn no_kvm(source: io::Error) -> Error {
    let advice = match source.kind() {
        io::ErrorKind::NotFound => {
            "there is none; load kvm_intel or kvm_amd, and enable virtualisation in the firmware (or nested \
             virtualisation where this is itself a VM)"
        }
        io::ErrorKind::PermissionDenied => "this user may not open it; join the group kvm, or run as root",
        _ => "it does not open",
    };
    Error::NoKvm { advice, source }
}

/// Turns KVM's answer into [`Error::Kvm`], naming the call.
pub(crate) trait OrRefused<T> {
    fn or_refused(self, call: &str) -> Result<T>;
}

impl<T> OrRefused<T> for std::result::Result<T, kvm_ioctls::Error> {
    fn or_refused(self, call: &str) -> Result<T> {
        self.map_err(|errno| refused(call, errno))
    }
}

pub(crate) fn refused(call: &str, errno: kvm_ioctls::Error) -> Error {
    Error::Kvm { call: call.to_owned(), source: io::Error::from_raw_os_error(errno.errno()) }
}

/// Whether KVM offers the TSC-deadline timer. kvm_amd says so here only, not in its supported CPUID.
pub(crate) fn has_tsc_deadline(kvm: &Kvm) -> bool {
    kvm.check_extension(Cap::TscDeadlineTimer)
}
