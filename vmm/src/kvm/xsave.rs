//! The XSAVE area of a vCPU, as bytes in the CPU's own layout.

use kvm_bindings::{Xsave, kvm_xsave, kvm_xsave2};
use kvm_ioctls::{Cap, Kvm, VcpuFd};

use super::KvmContext;
use crate::error::{Error, Result};
use crate::persist::Base64Bytes;

/// Bytes of `struct kvm_xsave`. XSAVE2 appends further components.
const PLAIN_LEN: usize = size_of::<kvm_xsave>();
const _: () = assert!(PLAIN_LEN == 4096);
const _: () = assert!(size_of::<kvm_xsave2>() >= PLAIN_LEN);

/// The calls and the size with which KVM exchanges the area.
#[derive(Clone, Copy, Debug)]
pub(super) enum XsaveArea {
    /// `KVM_GET_XSAVE`: Linux before 5.17.
    Plain,
    /// `KVM_GET_XSAVE2`, with this size of the area in bytes.
    Sized(usize),
}

impl XsaveArea {
    /// Returns the calls that this KVM offers (KVM API, sections 4.42 and 4.134).
    pub(super) fn of(kvm: &Kvm) -> Self {
        match usize::try_from(kvm.check_extension_int(Cap::Xsave2)) {
            Ok(len) if len > 0 => Self::Sized(len.max(PLAIN_LEN)),
            _ => Self::Plain,
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Plain => PLAIN_LEN,
            Self::Sized(len) => len,
        }
    }

    /// Reads the area of a vCPU.
    #[allow(unsafe_code)]
    pub(super) fn read(self, vcpu: &VcpuFd) -> Result<Base64Bytes> {
        let words: Vec<u32> = match self {
            Self::Plain => vcpu.get_xsave().context("KVM_GET_XSAVE")?.region.to_vec(),
            Self::Sized(_) => {
                let mut area = self.empty();
                // SAFETY: the area is as large as KVM_CAP_XSAVE2 asks for.
                unsafe { vcpu.get_xsave2(&mut area) }.context("KVM_GET_XSAVE2")?;
                area.as_fam_struct_ref().xsave.region.iter().chain(area.as_slice()).copied().collect()
            }
        };
        Ok(Base64Bytes(words.into_iter().flat_map(u32::to_le_bytes).take(self.len()).collect()))
    }

    /// Writes the area of a vCPU. Accepts more bytes than KVM takes if the rest are zeros.
    #[allow(unsafe_code)]
    pub(super) fn write(self, vcpu: &VcpuFd, Base64Bytes(bytes): &Base64Bytes) -> Result<()> {
        if bytes.len() < PLAIN_LEN || bytes.iter().skip(self.len()).any(|byte| *byte != 0) {
            let problem =
                format!("{} bytes; this host's KVM takes {PLAIN_LEN} to {}", bytes.len(), self.len());
            return Err(Error::config("xsave", problem));
        }
        let mut words = bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(word)
        });
        let mut plain = kvm_xsave::default();
        plain.region.iter_mut().zip(&mut words).for_each(|(to, from)| *to = from);
        let written = match self {
            // SAFETY: without KVM_CAP_XSAVE2, KVM reads no more than `struct kvm_xsave`.
            Self::Plain => unsafe { vcpu.set_xsave(&plain) },
            Self::Sized(_) => {
                let mut area = self.empty();
                // SAFETY: replaces the fixed part only, so the length of the flexible part stays.
                unsafe { area.as_mut_fam_struct() }.xsave = plain;
                area.as_mut_slice().iter_mut().zip(words).for_each(|(to, from)| *to = from);
                // SAFETY: the area is as large as KVM_CAP_XSAVE2 asks for.
                unsafe { vcpu.set_xsave2(&area) }
            }
        };
        written.context("KVM_SET_XSAVE")
    }

    fn empty(self) -> Xsave {
        let more = (self.len() - PLAIN_LEN).div_ceil(4);
        Xsave::new(more).expect("KVM's size is below the wrapper's limit")
    }
}
