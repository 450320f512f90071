//! The time-stamp counters of a VM's vCPUs: their rate, and how they go on after a restore from where they stood.
//!
//! KVM may take a written TSC for an attempt to synchronise the vCPUs and drop the value: before Linux 6.7 whenever it is within
//! a second of the value that KVM expects, which is the last write plus the time since, creation counting as a write of 0
//! (`kvm_synchronize_tsc` of arch/x86/kvm/x86.c). Two ways lead around it:
//!
//! ```text
//! KVM_VCPU_TSC_OFFSET (Linux 5.16):  set each vCPU's offset; equal ones stay exactly equal. At the host's rate the offset
//!                                    follows from the host's TSC; at another one KVM is asked for it first
//! otherwise:                         first vCPU: write a value far off, write its own; the others: write what the first reads,
//!                                    which KVM takes for synchronisation, and gives them the first's offset
//! ```

use kvm_bindings::{KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, kvm_device_attr};
use kvm_ioctls::{Cap, Kvm, VcpuFd};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use super::msr;
use super::{OrRefused, refused};
use crate::error::{Error, Result};

/// Two rates count as one when they differ by no more than this: KVM's own tolerance (`tsc_tolerance_ppm` of
/// arch/x86/kvm/x86.c).
const TOLERANCE_PPM: u64 = 250;

/// What is added to a value to have one that KVM does not take for the value.
const FAR_OFF: u64 = 1 << 63;

/// `KVM_SET_DEVICE_ATTR` and `KVM_GET_DEVICE_ATTR` (`_IOW(KVMIO, 0xe1 and 0xe2, struct kvm_device_attr)`): kvm-ioctls has them for
/// the vCPUs of other architectures only.
const SET_DEVICE_ATTR: libc::Ioctl = 0x4018_aee1;
const GET_DEVICE_ATTR: libc::Ioctl = 0x4018_aee2;
const _: () = assert!(size_of::<kvm_device_attr>() == 0x18);

/// The rate of a vCPU's TSC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rate {
    /// The host's, as that of every new vCPU.
    #[default]
    Host,
    /// It was set.
    Set,
}

/// The counter of one vCPU.
pub(super) trait Counter {
    /// Reads the host's counter, if this one is that plus the offset.
    fn host(&self) -> Option<u64>;
    /// What is added to the host's counter; none where KVM does not tell.
    fn offset(&self) -> Result<Option<u64>>;
    /// Sets the offset. False if KVM has no offsets.
    fn set_offset(&self, offset: u64) -> Result<bool>;
    fn read(&self) -> Result<u64>;
    fn write(&self, value: u64) -> Result<()>;
}

/// The counter of a vCPU of KVM's.
#[derive(Debug)]
pub(super) struct VcpuTsc<'a> {
    pub(super) fd: &'a VcpuFd,
    pub(super) rate: Rate,
}

impl VcpuTsc<'_> {
    /// Gets or sets the offset. False if KVM has no such attribute: ENOTTY and EINVAL are from before vCPUs
    /// had any (Linux 5.16).
    #[allow(unsafe_code)]
    fn exchange(&self, request: libc::Ioctl, call: &str, offset: &mut u64) -> Result<bool> {
        let attribute = kvm_device_attr {
            group: KVM_VCPU_TSC_CTRL,
            attr: u64::from(KVM_VCPU_TSC_OFFSET),
            addr: std::ptr::from_mut(offset) as u64,
            flags: 0,
        };
        // SAFETY: KVM reads the structure, and reads or writes the u64 that it points to.
        if unsafe { libc::ioctl(self.fd.as_raw_fd(), request, &raw const attribute) } == 0 {
            return Ok(true);
        }
        match kvm_ioctls::Error::last() {
            error if matches!(error.errno(), libc::ENXIO | libc::EINVAL | libc::ENOTTY) => Ok(false),
            error => Err(refused(&format!("{call} of KVM_VCPU_TSC_OFFSET"), error)),
        }
    }
}

impl Counter for VcpuTsc<'_> {
    #[allow(unsafe_code)]
    fn host(&self) -> Option<u64> {
        // SAFETY: every CPU that runs KVM has the instruction, and Linux lets a process use it.
        (self.rate == Rate::Host).then(|| unsafe { std::arch::x86_64::_rdtsc() })
    }

    fn offset(&self) -> Result<Option<u64>> {
        let mut offset = 0;
        Ok(self.exchange(GET_DEVICE_ATTR, "KVM_GET_DEVICE_ATTR", &mut offset)?.then_some(offset))
    }

    fn set_offset(&self, mut offset: u64) -> Result<bool> {
        self.exchange(SET_DEVICE_ATTR, "KVM_SET_DEVICE_ATTR", &mut offset)
    }

    fn read(&self) -> Result<u64> {
        let value = msr::read(self.fd, &[msr::TSC])?[0].value;
        value.ok_or_else(|| refused("reading a vCPU's TSC", kvm_ioctls::Error::new(libc::EINVAL)))
    }

    fn write(&self, value: u64) -> Result<()> {
        msr::write(self.fd, [msr::Msr { index: msr::TSC, value: Some(value) }])
    }
}

/// The counter of one vCPU as it was saved.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedTsc {
    /// What it read.
    pub(super) value: u64,
    /// What was added to the host's counter, where KVM told.
    pub(super) offset: Option<u64>,
    /// Its rate in kHz.
    pub(super) khz: u32,
}

impl SavedTsc {
    /// How far this counter is ahead of `first` at any one moment, in cycles. Without offsets only the values are known, each read
    /// a little later than the one before: less than a second apart is equal, as KVM has it.
    fn ahead_of(&self, first: &Self) -> u64 {
        let same_rate = self.khz == first.khz;
        if let (true, Some(this), Some(first)) = (same_rate, self.offset, first.offset) {
            return this.wrapping_sub(first);
        }
        let ahead = self.value.wrapping_sub(first.value);
        let second = u64::from(first.khz) * 1000;
        if same_rate && ahead.min(ahead.wrapping_neg()) < second { 0 } else { ahead }
    }
}

/// Has the counters of a VM go on from where they stood, with the distances that they had from each other. Their rates have been
/// set.
pub(super) fn restore<C: Counter>(counters: &[(C, SavedTsc)]) -> Result<()> {
    let Some((first, saved)) = counters.first() else { return Ok(()) };
    if set_offsets(counters, first, saved)? { Ok(()) } else { write(counters, saved) }
}

/// False if KVM has no offsets.
fn set_offsets<C: Counter>(counters: &[(C, SavedTsc)], first: &C, saved: &SavedTsc) -> Result<bool> {
    let Some(to_first) = offset_to(first, saved.value)? else { return Ok(false) };
    for (counter, own) in counters {
        if !counter.set_offset(to_first.wrapping_add(own.ahead_of(saved)))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Equal ones together: KVM synchronises a vCPU with the one that was written last.
fn write<C: Counter>(counters: &[(C, SavedTsc)], saved: &SavedTsc) -> Result<()> {
    let ahead = |(_, own): &&(C, SavedTsc)| own.ahead_of(saved);
    let mut rest: Vec<_> = counters.iter().collect();
    rest.sort_by_key(ahead);
    let mut leader: Option<(&C, u64)> = None;
    for each in rest {
        let distance = ahead(&each);
        match leader {
            Some((leader, of)) if of == distance => each.0.write(leader.read()?)?,
            _ => {
                let now = match leader {
                    Some((leader, of)) => leader.read()?.wrapping_sub(of).wrapping_add(distance),
                    None => saved.value.wrapping_add(distance),
                };
                each.0.write(now.wrapping_add(FAR_OFF))?;
                each.0.write(now)?;
                leader = Some((&each.0, distance));
            }
        }
    }
    Ok(())
}

/// The offset with which a counter reads `value` now; none if KVM tells nothing. KVM may refuse the offset
/// all the same.
fn offset_to<C: Counter>(counter: &C, value: u64) -> Result<Option<u64>> {
    if let Some(host) = counter.host() {
        return Ok(Some(value.wrapping_sub(host)));
    }
    let Some(offset) = counter.offset()? else { return Ok(None) };
    Ok(Some(offset.wrapping_add(value.wrapping_sub(counter.read()?))))
}

/// Gives a vCPU with this rate its guest's TSC rate, and returns which that is.
///
/// # Errors
/// [`Error::Config`] names both rates where they differ and this host cannot scale a TSC: KVM would take a higher one, and have the
/// guest's clock catch up by leaps.
pub(super) fn set_rate(kvm: &Kvm, vcpu: &VcpuFd, now: Rate, khz: u32) -> Result<Rate> {
    let here = match now {
        Rate::Host => host_khz(vcpu)?,
        Rate::Set => vcpu.get_tsc_khz().or_refused("KVM_GET_TSC_KHZ")?,
    };
    if u64::from(here.abs_diff(khz)) * 1_000_000 <= u64::from(here) * TOLERANCE_PPM {
        return Ok(now);
    }
    if !kvm.check_extension(Cap::TscControl) {
        let problem = format!(
            "the guest's TSC runs at {khz} kHz and this host's at {here} kHz, and this host cannot scale it: restore on a \
             host with a TSC of {khz} kHz, or with TSC scaling"
        );
        return Err(Error::config("tsc_khz", problem));
    }
    let call = format!("KVM_SET_TSC_KHZ (the guest's TSC runs at {khz} kHz, this host's at {here})");
    vcpu.set_tsc_khz(khz).or_refused(&call)?;
    Ok(Rate::Set)
}

/// The rate of new vCPUs, in kHz: the same for as long as the host runs, so that only the first one in a
/// process is asked.
fn host_khz(vcpu: &VcpuFd) -> Result<u32> {
    static HOST: OnceLock<u32> = OnceLock::new();
    match HOST.get() {
        Some(khz) => Ok(*khz),
        None => vcpu.get_tsc_khz().or_refused("KVM_GET_TSC_KHZ").map(|khz| *HOST.get_or_init(|| khz)),
    }
}

#[cfg(test)]
#[path = "tsc_tests.rs"]
mod tests;
