//! Model-specific registers: the list to save, and their reads and writes.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::{Cap, Kvm, VcpuFd};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{KvmContext, kvm_error};
use crate::error::{Error, Result};

pub(crate) mod abilities;
mod names;
pub(super) mod template;

/// IA32_TIME_STAMP_COUNTER. Restored first, because timers are relative to it.
pub const TSC: u32 = 0x10;
/// IA32_TSC_DEADLINE. Restored after the local APIC and the TSC.
pub const TSC_DEADLINE: u32 = 0x6e0;
/// IA32_MISC_ENABLE.
pub const MISC_ENABLE: u32 = 0x1a0;
/// IA32_MTRR_DEF_TYPE.
pub const MTRR_DEF_TYPE: u32 = 0x2ff;
const MCG_CAP: u32 = 0x179;
const MC0_CTL: u32 = 0x400;
/// Registers of one machine-check bank: CTL, STATUS, ADDR, MISC.
const MC_BANK_LEN: u32 = 4;
/// The MTRRs, which KVM's list lacks: variable ranges, fixed ranges, default type (Intel SDM volume 3,
/// 12.11).
const MTRRS: [std::ops::RangeInclusive<u32>; 5] =
    [0x200..=0x20f, 0x250..=0x250, 0x258..=0x259, 0x268..=0x26f, MTRR_DEF_TYPE..=MTRR_DEF_TYPE];
/// The registers of Hyper-V (TLFS, appendix C). KVM lists them even if a guest has no Hyper-V, and each
/// version of Linux has others.
const HYPERV: std::ops::RangeInclusive<u32> = 0x4000_0000..=0x4000_0fff;
/// Most registers one `KVM_GET_MSRS` or `KVM_SET_MSRS` takes (`MAX_IO_MSRS` in arch/x86/kvm/x86.c).
const BATCH: usize = 256;

/// One register. A list serialises it as a key and a value, `"0x10 tsc": 5000`, because a state file has
/// hundreds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msr {
    /// Number of the register, as for RDMSR.
    pub index: u32,
    /// Value; none if KVM refused to read it.
    pub value: Option<u64>,
}

/// Registers, in the order of their reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MsrList(pub Vec<Msr>);

impl Serialize for MsrList {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|msr| {
            let name = names::name(msr.index).map_or_else(String::new, |name| format!(" {name}"));
            (format!("{:#x}{name}", msr.index), msr.value)
        }))
    }
}

impl<'de> Deserialize<'de> for MsrList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(ListVisitor)
    }
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = MsrList;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MSRs as a map of \"0xNUMBER NAME\" to a value or null")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<MsrList, A::Error> {
        let mut list = Vec::with_capacity(BATCH);
        while let Some((Index(index), value)) = map.next_entry()? {
            list.push(Msr { index, value });
        }
        Ok(MsrList(list))
    }
}

/// The number at the start of a key. The name after it is for people.
struct Index(u32);

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Index;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an MSR such as \"0x10 tsc\"")
            }
            fn visit_str<E: serde::de::Error>(self, key: &str) -> std::result::Result<Index, E> {
                let number = key.split(' ').next().and_then(|number| number.strip_prefix("0x"));
                let index = number.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                index.map(Index).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(key), &self))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

/// Whether a register is one of Hyper-V's.
pub(super) fn is_hyperv(index: u32) -> bool {
    HYPERV.contains(&index)
}

/// Returns the numbers of the registers to save: KVM's list, the MTRRs and the vCPU's machine-check banks.
/// Leaves out registers of Hyper-V if the guest has no Hyper-V.
pub(super) fn indices(kvm: &Kvm, vcpu: &VcpuFd, shows_hyperv: bool) -> Result<Vec<u32>> {
    let listed = kvm.get_msr_index_list().context("KVM_GET_MSR_INDEX_LIST")?;
    let banks = read(vcpu, &[MCG_CAP])?[0].value.map_or(0, |capabilities| capabilities as u32 & 0xff);
    Ok(saved_indices(listed.as_slice(), banks, shows_hyperv))
}

fn saved_indices(listed: &[u32], banks: u32, shows_hyperv: bool) -> Vec<u32> {
    let mut indices = listed.to_vec();
    indices.extend(MTRRS.into_iter().flatten());
    indices.extend(MC0_CTL..MC0_CTL + banks * MC_BANK_LEN);
    indices.retain(|&index| shows_hyperv || !is_hyperv(index));
    indices.sort_unstable();
    indices.dedup();
    indices
}

/// A source of registers: a vCPU, or KVM itself, which has the feature MSRs. A call stops at the first
/// register that is refused, and returns the number of registers before it.
pub(super) trait MsrReader {
    fn get(&self, msrs: &mut Msrs) -> Result<usize>;
}

/// A destination of registers: a vCPU. A call stops like [`MsrReader::get`].
pub(super) trait MsrWriter: MsrReader {
    fn set(&self, msrs: &Msrs) -> Result<usize>;
}

impl MsrReader for Kvm {
    fn get(&self, msrs: &mut Msrs) -> Result<usize> {
        self.get_msrs(msrs).context("KVM_GET_MSRS of /dev/kvm")
    }
}

impl MsrReader for VcpuFd {
    fn get(&self, msrs: &mut Msrs) -> Result<usize> {
        self.get_msrs(msrs).context("KVM_GET_MSRS")
    }
}

impl MsrWriter for VcpuFd {
    fn set(&self, msrs: &Msrs) -> Result<usize> {
        self.set_msrs(msrs).context("KVM_SET_MSRS")
    }
}

/// Reads the feature MSRs of KVM, such as the capabilities of the CPU's architecture. Older versions of KVM
/// have none.
///
/// # Errors
/// Returns an error if KVM has feature MSRs and refuses to read them.
pub(super) fn features(kvm: &Kvm) -> Result<Vec<Msr>> {
    if !kvm.check_extension(Cap::GetMsrFeatures) {
        return Ok(Vec::new());
    }
    let list = kvm.get_msr_feature_index_list().context("KVM_GET_MSR_FEATURE_INDEX_LIST")?;
    read(kvm, list.as_slice())
}

/// Reads the registers. A register that KVM refuses has no value.
pub(super) fn read(vcpu: &impl MsrReader, indices: &[u32]) -> Result<Vec<Msr>> {
    let mut read = Vec::with_capacity(indices.len());
    while read.len() < indices.len() {
        let rest = &indices[read.len()..];
        let rest = &rest[..rest.len().min(BATCH)];
        let entries: Vec<_> =
            rest.iter().map(|&index| kvm_msr_entry { index, ..Default::default() }).collect();
        let mut batch = list(&entries);
        let done = vcpu.get(&mut batch)?;
        read.extend(batch.as_slice()[..done].iter().map(|m| Msr { index: m.index, value: Some(m.data) }));
        if let Some(&index) = rest.get(done) {
            read.push(Msr { index, value: None });
        }
    }
    Ok(read)
}

/// Writes the registers that have a value, in the given order. A register that KVM refuses is skipped if it
/// holds the value, as read-only registers of a fresh vCPU do. It is also skipped if KVM does not know it and
/// the value is 0, as in an unused register.
///
/// # Errors
/// Returns an error if KVM refuses another register.
pub(super) fn write(vcpu: &impl MsrWriter, msrs: impl IntoIterator<Item = Msr>) -> Result<()> {
    let entries: Vec<_> = msrs
        .into_iter()
        .filter_map(|msr| {
            msr.value.map(|data| kvm_msr_entry { index: msr.index, data, ..Default::default() })
        })
        .collect();
    let mut rest = &entries[..];
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(BATCH)];
        let done = vcpu.set(&list(batch))?;
        if let Some(msr) = batch.get(done) {
            let held = read(vcpu, &[msr.index])?[0].value;
            let is_unused = held.is_none() && msr.data == 0;
            if held != Some(msr.data) && !is_unused {
                return Err(cannot_write(msr, held));
            }
        }
        rest = &rest[(done + 1).min(rest.len())..];
    }
    Ok(())
}

fn cannot_write(msr: &kvm_msr_entry, held: Option<u64>) -> Error {
    let held = held.map_or_else(|| "cannot be read".to_owned(), |value| format!("holds {value:#x}"));
    kvm_error(
        &format!("MSR {:#x} = {:#x} (KVM_SET_MSRS; the MSR of a fresh vCPU {held})", msr.index, msr.data),
        kvm_ioctls::Error::new(libc::EINVAL),
    )
}

fn list(entries: &[kvm_msr_entry]) -> Msrs {
    Msrs::from_entries(entries).expect("a batch is smaller than KVM's limit")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// The registers of a vCPU on an older kernel, some of them read-only.
    pub(super) struct OlderKernel {
        pub(super) values: RefCell<BTreeMap<u32, u64>>,
        read_only: Vec<u32>,
    }

    impl OlderKernel {
        pub(super) fn with<const N: usize>(values: [(u32, u64); N], read_only: &[u32]) -> Self {
            Self { values: RefCell::new(values.into()), read_only: read_only.to_vec() }
        }
    }

    impl MsrReader for OlderKernel {
        fn get(&self, msrs: &mut Msrs) -> Result<usize> {
            let values = self.values.borrow();
            let mut done = 0;
            for msr in msrs.as_mut_slice() {
                let Some(&value) = values.get(&msr.index) else { break };
                msr.data = value;
                done += 1;
            }
            Ok(done)
        }
    }

    impl MsrWriter for OlderKernel {
        fn set(&self, msrs: &Msrs) -> Result<usize> {
            let mut values = self.values.borrow_mut();
            let is_refused = |msr: &&kvm_msr_entry| {
                self.read_only.contains(&msr.index) || !values.contains_key(&msr.index)
            };
            let done = msrs.as_slice().iter().take_while(|msr| !is_refused(msr)).count();
            values.extend(msrs.as_slice()[..done].iter().map(|msr| (msr.index, msr.data)));
            Ok(done)
        }
    }

    #[test]
    fn unknown_register_is_skipped_if_its_value_is_0() {
        let older_kernel = || OlderKernel::with([(0x10, 1), (0x10a, 5), (0x174, 0)], &[0x10a]);
        let msr = |index, value| Msr { index, value: Some(value) };
        let older = older_kernel();
        write(&older, [msr(0x1c4, 0), msr(0x10a, 5), msr(0x1c5, 0), msr(0x174, 9), msr(0x4000_0118, 0)])
            .unwrap();
        assert_eq!(older.values.into_inner(), [(0x10, 1), (0x10a, 5), (0x174, 9)].into());
        for (lost, words) in [(msr(0x1c4, 3), "MSR 0x1c4 = 0x3"), (msr(0x10a, 0), "holds 0x5")] {
            let error = write(&older_kernel(), [lost, msr(0x174, 9)]).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn registers_of_hyper_v_are_saved_only_if_the_guest_has_hyper_v() {
        let listed = [0x10, 0x4000_0000, 0x4000_0118, 0x4b56_4d00, 0x10];
        let mut expected = vec![0x10, MC0_CTL, MC0_CTL + 1, MC0_CTL + 2, MC0_CTL + 3, 0x4b56_4d00];
        expected.extend(MTRRS.into_iter().flatten());
        expected.sort_unstable();
        assert_eq!(saved_indices(&listed, 1, false), expected);
        expected.extend([0x4000_0000, 0x4000_0118]);
        expected.sort_unstable();
        assert_eq!(saved_indices(&listed, 1, true), expected);
    }

    #[test]
    fn list_of_msrs_survives_json_and_garbage_is_refused() {
        let msr = |index, value| Msr { index, value };
        let list = MsrList(vec![msr(0x10, Some(u64::MAX)), msr(0xc001_0015, Some(7)), msr(0x10a, None)]);
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(
            text,
            r#"{"0x10 tsc":18446744073709551615,"0xc0010015":7,"0x10a arch_capabilities":null}"#
        );
        assert_eq!(serde_json::from_str::<MsrList>(&text).unwrap(), list);
        for wrong in [r#"{"10 tsc":1}"#, r#"{"0xzz":1}"#, r#"{"0x10":"1"}"#, "[]"] {
            assert!(serde_json::from_str::<MsrList>(wrong).is_err(), "{wrong}");
        }
    }
}
