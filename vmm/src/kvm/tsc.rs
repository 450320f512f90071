//! The time-stamp counters of a VM's vCPUs: their rate, and their values after a restore.
//!
//! KVM may mistake a written TSC for an attempt to synchronise vCPUs, and drop the value. Before Linux 6.7 it
//! does so if the value is within a second of the last write plus the time since (`kvm_synchronize_tsc` of
//! arch/x86/kvm/x86.c). Creation counts as a write of 0. There are two ways to restore a value:
//!
//! ```text
//! KVM_VCPU_TSC_OFFSET (Linux 5.16)
//!     Set the offset of each vCPU. Equal offsets stay exactly equal. At the host's rate the offset follows
//!     from the host's TSC; at another rate it follows from KVM's offset.
//! otherwise
//!     First vCPU: write a distant value, then its own. Other vCPUs: write the value that the first reads.
//!     KVM takes this for synchronisation, and gives them the offset of the first.
//! ```

use kvm_bindings::{KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, kvm_device_attr};
use kvm_ioctls::{Cap, Kvm, VcpuFd};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::time::Duration;

use super::msr;
use super::{KvmContext, kvm_error};
use crate::error::{Error, Result};

/// Largest difference of rates that count as equal: KVM's tolerance (`tsc_tolerance_ppm` of
/// arch/x86/kvm/x86.c).
const TOLERANCE_PPM: u64 = 250;

/// Added to a value, it gives a distant value that KVM does not take for synchronisation.
const FAR_OFF: u64 = 1 << 63;

/// The longest time in which the counters and the clock of a VM are saved.
const LONGEST_SAVE: Duration = Duration::from_secs(60);

/// `KVM_SET_DEVICE_ATTR` and `KVM_GET_DEVICE_ATTR` (`_IOW(KVMIO, 0xe1 and 0xe2, struct kvm_device_attr)`).
/// kvm-ioctls has them for vCPUs of other architectures only.
const SET_DEVICE_ATTR: libc::Ioctl = 0x4018_aee1;
const GET_DEVICE_ATTR: libc::Ioctl = 0x4018_aee2;
const _: () = assert!(size_of::<kvm_device_attr>() == 0x18);

/// The rate of a vCPU's TSC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rate {
    /// The host's rate, as in every new vCPU.
    #[default]
    Host,
    /// A rate that was set.
    Set,
}

/// The counter of one vCPU.
pub(super) trait Counter {
    /// Reads the host's counter; none if this counter has another rate.
    fn host(&self) -> Option<u64>;
    /// Returns the offset from the host's counter; none if KVM has no offsets.
    fn offset(&self) -> Result<Option<u64>>;
    /// Sets the offset. Returns false if KVM has no offsets.
    fn set_offset(&self, offset: u64) -> Result<bool>;
    fn read(&self) -> Result<u64>;
    fn write(&self, value: u64) -> Result<()>;
}

/// The counter of a vCPU in KVM.
#[derive(Clone, Copy, Debug)]
pub(super) struct VcpuTsc<'a> {
    pub(super) fd: &'a VcpuFd,
    pub(super) rate: Rate,
}

impl VcpuTsc<'_> {
    /// Gets or sets the offset. Returns false if KVM has no such attribute. ENOTTY and EINVAL come from
    /// kernels whose vCPUs have no attributes (before Linux 5.16).
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
            error => Err(kvm_error(&format!("{call} of KVM_VCPU_TSC_OFFSET"), error)),
        }
    }
}

impl Counter for VcpuTsc<'_> {
    #[allow(unsafe_code)]
    fn host(&self) -> Option<u64> {
        // SAFETY: every CPU that runs KVM has the instruction, and Linux lets processes use it.
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
        value.ok_or_else(|| kvm_error("KVM_GET_MSRS of a vCPU's TSC", kvm_ioctls::Error::new(libc::EINVAL)))
    }

    fn write(&self, value: u64) -> Result<()> {
        msr::write(self.fd, [msr::Msr { index: msr::TSC, value: Some(value) }])
    }
}

/// The saved counter of one vCPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedTsc {
    /// Value.
    pub(super) value: u64,
    /// Offset from the host's counter, if KVM reported it.
    pub(super) offset: Option<u64>,
    /// Rate in kHz.
    pub(super) khz: u32,
}

impl SavedTsc {
    /// Returns the counter after some time.
    pub(super) fn later(self, time: Duration) -> Self {
        let cycles = time.as_nanos() * u128::from(self.khz) / 1_000_000;
        // A counter wraps, as in hardware.
        Self { value: self.value.wrapping_add(cycles as u64), ..self }
    }

    /// Returns the counter at another moment of its host, before or after it was read. Returns none if its
    /// offset from the host's counter is unknown.
    pub(super) fn at(self, host: u64) -> Option<Self> {
        let value = host.wrapping_add(self.offset?);
        // The sum is no counter's if the guest has another rate than its host.
        let apart = value.wrapping_sub(self.value).cast_signed().unsigned_abs();
        (apart < u64::from(self.khz) * 1000 * LONGEST_SAVE.as_secs()).then_some(Self { value, ..self })
    }

    /// Returns the distance of this counter from `first` in cycles. Without offsets it follows from the
    /// values, which were read one after the other: values less than a second apart count as equal, as in
    /// KVM.
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

/// Continues the counters of a VM from their saved values, and keeps their distances. Their rates have been
/// set. The values are those at `host`, a value of the host's counter, or else those of now.
pub(super) fn restore<C: Counter>(counters: &[(C, SavedTsc)], host: Option<u64>) -> Result<()> {
    let Some((first, saved)) = counters.first() else { return Ok(()) };
    if set_offsets(counters, (first, saved), host)? { Ok(()) } else { write(counters, saved) }
}

/// Restores the counters by offsets. Returns false if KVM has no offsets.
fn set_offsets<C: Counter>(
    counters: &[(C, SavedTsc)],
    (first, saved): (&C, &SavedTsc),
    host: Option<u64>,
) -> Result<bool> {
    let Some(to_first) = offset_to(first, saved.value, host)? else { return Ok(false) };
    for (counter, own) in counters {
        if !counter.set_offset(to_first.wrapping_add(own.ahead_of(saved)))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Restores the counters by writes, equal counters in sequence: KVM synchronises a vCPU with the last write.
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

/// Returns the offset with which a counter reads `value` when the host's counter is `host`, or else now.
/// Returns none if KVM has no offsets. KVM may still refuse to set it. At another rate than the host's it is
/// the offset of now.
fn offset_to<C: Counter>(counter: &C, value: u64, host: Option<u64>) -> Result<Option<u64>> {
    if let Some(now) = counter.host() {
        return Ok(Some(value.wrapping_sub(host.unwrap_or(now))));
    }
    let Some(offset) = counter.offset()? else { return Ok(None) };
    Ok(Some(offset.wrapping_add(value.wrapping_sub(counter.read()?))))
}

/// Sets a vCPU's TSC rate to its guest's rate, and returns the kind of rate.
///
/// # Errors
/// [`Error::Config`] names both rates if they differ and this host cannot scale a TSC. KVM would accept a
/// higher rate, and make the guest's clock catch up in jumps.
pub(super) fn set_rate(kvm: &Kvm, vcpu: &VcpuFd, now: Rate, khz: u32) -> Result<Rate> {
    let here = match now {
        Rate::Host => host_khz(vcpu)?,
        Rate::Set => vcpu.get_tsc_khz().context("KVM_GET_TSC_KHZ")?,
    };
    if u64::from(here.abs_diff(khz)) * 1_000_000 <= u64::from(here) * TOLERANCE_PPM {
        return Ok(now);
    }
    if !kvm.check_extension(Cap::TscControl) {
        let problem = format!(
            "the guest's TSC runs at {khz} kHz and this host's at {here} kHz, and this host cannot scale it: \
             restore on a host with a TSC of {khz} kHz, or with TSC scaling"
        );
        return Err(Error::config("tsc_khz", problem));
    }
    let call = format!("KVM_SET_TSC_KHZ (the guest's TSC runs at {khz} kHz, this host's at {here})");
    vcpu.set_tsc_khz(khz).context(&call)?;
    Ok(Rate::Set)
}

/// Returns the rate of new vCPUs in kHz. It stays the same while the host runs, so only the first vCPU of a
/// process is queried.
fn host_khz(vcpu: &VcpuFd) -> Result<u32> {
    static HOST: OnceLock<u32> = OnceLock::new();
    match HOST.get() {
        Some(khz) => Ok(*khz),
        None => vcpu.get_tsc_khz().context("KVM_GET_TSC_KHZ").map(|khz| *HOST.get_or_init(|| khz)),
    }
}

#[cfg(test)]
#[path = "tsc_tests.rs"]
mod tests;
