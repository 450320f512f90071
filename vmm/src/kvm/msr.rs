//! Model-specific registers: which there are to save, and how they are read and written back.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::{Kvm, VcpuFd};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use super::{OrRefused, refused};
use crate::error::{Error, Result};

mod names;

/// IA32_TIME_STAMP_COUNTER. Goes first: timers are armed relative to it.
pub const TSC: u32 = 0x10;
/// IA32_TSC_DEADLINE. Needs the local APIC and the TSC to be there already.
pub const TSC_DEADLINE: u32 = 0x6e0;
/// IA32_MISC_ENABLE.
pub const MISC_ENABLE: u32 = 0x1a0;
/// IA32_MTRR_DEF_TYPE.
pub const MTRR_DEF_TYPE: u32 = 0x2ff;
const MCG_CAP: u32 = 0x179;
const MC0_CTL: u32 = 0x400;
/// Registers of one machine-check bank: CTL, STATUS, ADDR, MISC.
const MC_BANK_LEN: u32 = 4;
/// The MTRRs, which KVM's own list lacks: variable ranges, fixed ranges, default type (Intel SDM volume 3, 12.11).
const MTRRS: [std::ops::RangeInclusive<u32>; 5] =
    [0x200..=0x20f, 0x250..=0x250, 0x258..=0x259, 0x268..=0x26f, MTRR_DEF_TYPE..=MTRR_DEF_TYPE];
/// Most registers one `KVM_GET_MSRS` or `KVM_SET_MSRS` takes (`MAX_IO_MSRS` in arch/x86/kvm/x86.c).
const BATCH: usize = 256;

/// One register. Written with its name beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Msr {
    /// The register's number, as for RDMSR.
    pub index: u32,
    /// Its value; none if KVM refused to read it.
    pub value: Option<u64>,
}

impl Serialize for Msr {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut msr = serializer.serialize_struct("Msr", 3)?;
        msr.serialize_field("index", &self.index)?;
        match names::name(self.index) {
            Some(name) => msr.serialize_field("name", &name)?,
            None => msr.skip_field("name")?,
        }
        msr.serialize_field("value", &self.value)?;
        msr.end()
    }
}

/// Numbers of all registers worth saving: KVM's list, the MTRRs, and the machine-check banks this vCPU has.
pub(super) fn indices(kvm: &Kvm, vcpu: &VcpuFd) -> Result<Vec<u32>> {
    let mut indices = kvm.get_msr_index_list().or_refused("KVM_GET_MSR_INDEX_LIST")?.as_slice().to_vec();
    indices.extend(MTRRS.into_iter().flatten());
    let banks = read(vcpu, &[MCG_CAP])?[0].value.map_or(0, |capabilities| capabilities as u32 & 0xff);
    indices.extend(MC0_CTL..MC0_CTL + banks * MC_BANK_LEN);
    indices.sort_unstable();
    indices.dedup();
    Ok(indices)
}

/// Reads the registers; one that KVM refuses is recorded as absent.
pub(super) fn read(vcpu: &VcpuFd, indices: &[u32]) -> Result<Vec<Msr>> {
    let mut read = Vec::with_capacity(indices.len());
    while read.len() < indices.len() {
        let rest = &indices[read.len()..];
        let rest = &rest[..rest.len().min(BATCH)];
        let entries: Vec<_> =
            rest.iter().map(|&index| kvm_msr_entry { index, ..Default::default() }).collect();
        let mut batch = list(&entries);
        // KVM stops at the first register it refuses, and says how many came before.
        let done = vcpu.get_msrs(&mut batch).or_refused("KVM_GET_MSRS")?;
        read.extend(batch.as_slice()[..done].iter().map(|m| Msr { index: m.index, value: Some(m.data) }));
        if let Some(&index) = rest.get(done) {
            read.push(Msr { index, value: None });
        }
    }
    Ok(read)
}

/// Writes the registers that have a value, in the order given. A register that KVM refuses is left alone if it holds the
/// value already (read-only ones do on a fresh vCPU), and is an error otherwise.
pub(super) fn write(vcpu: &VcpuFd, msrs: impl IntoIterator<Item = Msr>) -> Result<()> {
    let entries: Vec<_> = msrs
        .into_iter()
        .filter_map(|msr| {
            msr.value.map(|data| kvm_msr_entry { index: msr.index, data, ..Default::default() })
        })
        .collect();
    let mut rest = &entries[..];
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(BATCH)];
        let done = vcpu.set_msrs(&list(batch)).or_refused("KVM_SET_MSRS")?;
        if let Some(msr) = batch.get(done) {
            let held = read(vcpu, &[msr.index])?[0].value;
            if held != Some(msr.data) {
                return Err(cannot_write(msr, held));
            }
        }
        rest = &rest[(done + 1).min(rest.len())..];
    }
    Ok(())
}

fn cannot_write(msr: &kvm_msr_entry, held: Option<u64>) -> Error {
    let held = held.map_or_else(|| "cannot be read".to_owned(), |value| format!("holds {value:#x}"));
    refused(
        &format!("MSR {:#x} = {:#x} (KVM_SET_MSRS; a fresh vCPU's {held})", msr.index, msr.data),
        kvm_ioctls::Error::new(libc::EINVAL),
    )
}

fn list(entries: &[kvm_msr_entry]) -> Msrs {
    Msrs::from_entries(entries).expect("a batch is smaller than KVM's limit")
}
