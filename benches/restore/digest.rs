//! A snapshot's state as the floor takes it: the arguments of KVM's calls, one after another, with nothing
//! left to decode. The layout is that of `programs/floor.h`.
#![allow(unsafe_code)]

use std::path::Path;

use kvm_bindings as kvm;
use kvm_ioctls::{Kvm, VcpuFd};
use serde_json::Value;
use volt_benches::{OrSay, Result};
use volt_vmm::internal::clock::ClockState;
use volt_vmm::internal::irqchip::IrqchipState;
use volt_vmm::internal::msr::{self, Msr};
use volt_vmm::internal::vcpu::VcpuState;

use crate::floor::Step;

/// Bytes of `struct floor_digest`; the room for regions in it.
const REGIONS: usize = 2;

const IOW: u64 = 1;
const IOR: u64 = 2;

/// `_IOC(direction, KVMIO, nr, size)`.
const fn request(direction: u64, nr: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | 0xae << 8 | nr
}

#[derive(Default)]
struct Calls {
    count: u64,
    bytes: Vec<u8>,
}

impl Calls {
    /// A call with `argument`; `size` is what the request's number says of it, which leaves out a flexible
    /// array.
    fn push(&mut self, on_vcpu: bool, step: Step, request: u64, argument: &[u8]) {
        self.count += 1;
        self.bytes.extend(u32::from(on_vcpu).to_ne_bytes());
        self.bytes.extend((step as u32).to_ne_bytes());
        self.bytes.extend(request.to_ne_bytes());
        self.bytes.extend((argument.len() as u64).to_ne_bytes());
        self.bytes.extend(argument);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    fn vcpu<T>(&mut self, nr: u64, argument: T) {
        self.push(true, Step::VcpuState, request(IOW, nr, size_of::<T>()), as_bytes(&argument));
    }

    fn vm<T>(&mut self, step: Step, direction: u64, nr: u64, argument: T) {
        self.push(false, step, request(direction, nr, size_of::<T>()), as_bytes(&argument));
    }

    /// KVM's lists: the number of entries, padding, the entries.
    fn list<T>(&mut self, nr: u64, entries: &[T]) {
        let mut argument = (entries.len() as u64).to_ne_bytes().to_vec();
        entries.iter().for_each(|entry| argument.extend(as_bytes(entry)));
        self.push(true, Step::VcpuState, request(IOW, nr, 8), &argument);
    }
}

/// Returns the bytes of one of KVM's structures, whose padding is all in fields.
fn as_bytes<T>(value: &T) -> &[u8] {
    // SAFETY: the bytes of a value that is borrowed, all of them initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Digests the snapshot in `dir`, of a machine with one vCPU.
///
/// # Errors
/// The state is not one this benchmark knows, or there is no KVM.
pub fn of(dir: &Path) -> Result<Vec<u8>> {
    let text = std::fs::read(dir.join("state.json")).or_say("read state.json")?;
    let state: Value = serde_json::from_slice(&text).or_say("decode state.json")?;
    let memory_len = state["metadata"]["memory_bytes"].as_u64().ok_or("state.json: no memory_bytes")?;
    let mut calls = Calls::default();
    vcpu_state(&mut calls, part(&state["machine"]["vcpus"][0])?)?;
    let split = match &state["machine"]["irqchip"] {
        Value::Null => true,
        chips => {
            irqchip(&mut calls, part(chips)?);
            false
        }
    };
    let clock: ClockState = part(&state["machine"]["clock"])?;
    calls.vm(Step::Clock, IOW, 0x7b, kvm::kvm_clock_data::from(ClockState { flags: 0, ..clock }));
    calls.push(true, Step::Clock, 0xae << 8 | 0xad, &[]); // KVM_KVMCLOCK_CTRL

    let below_4_gib = memory_len.min(3 << 30);
    let above = memory_len - below_4_gib;
    let head = [memory_len, split.into(), if above == 0 { 1 } else { REGIONS as u64 }];
    let regions = [[0, below_4_gib, 0], [4 << 30, above, below_4_gib]];
    let words = head.into_iter().chain(regions.into_iter().flatten()).chain([calls.count]);
    Ok(words.flat_map(u64::to_ne_bytes).chain(calls.bytes).collect())
}

fn part<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T> {
    T::deserialize(value).or_say("decode a part of state.json")
}

/// In the order of DESIGN.md, section 2.
fn vcpu_state(calls: &mut Calls, state: VcpuState) -> Result<()> {
    let cpuid: Vec<kvm::kvm_cpuid_entry2> = state.cpuid.iter().map(|&entry| entry.into()).collect();
    calls.list(0x90, &cpuid);
    calls.vcpu(0x99, kvm::kvm_mp_state { mp_state: state.mp_state });
    calls.vcpu(0x82, kvm::kvm_regs::from(state.regs));
    calls.vcpu(0x84, kvm::kvm_sregs::from(state.sregs));
    calls.vcpu(0xa2, kvm::kvm_debugregs::from(state.debug_regs));
    let mut xcrs = kvm::kvm_xcrs { nr_xcrs: state.xcrs.len() as u32, ..Default::default() };
    xcrs.xcrs.iter_mut().zip(&state.xcrs).for_each(|(to, &from)| *to = from.into());
    calls.vcpu(0xa7, xcrs);
    calls.push(true, Step::VcpuState, request(IOW, 0xa5, 4096), &state.xsave.0);
    calls.push(true, Step::VcpuState, request(IOW, 0x8f, 1024), &state.lapic.0);
    calls.list(0x89, &writable(&state.msrs.0, &cpuid)?);
    calls.vcpu(0xa0, kvm::kvm_vcpu_events::from(state.events));
    Ok(())
}

fn irqchip(calls: &mut Calls, state: IrqchipState) {
    for (chip_id, chip) in (0..).zip([state.pic_master, state.pic_slave, state.ioapic]) {
        let mut to = kvm::kvm_irqchip { chip_id, ..Default::default() };
        let mut dummy = [0; 512];
        dummy.iter_mut().zip(chip.0).for_each(|(to, from)| *to = from.cast_signed());
        to.chip.dummy = dummy;
        calls.vm(Step::Irqchip, IOR, 0x63, to);
    }
    let channels = state.pit.channels.map(Into::into);
    let pit = kvm::kvm_pit_state2 { channels, flags: state.pit.flags, ..Default::default() };
    calls.vm(Step::Irqchip, IOW, 0xa0, pit);
}

/// The MSRs that this KVM takes, the TSC first and its deadline last: all in one call.
fn writable(msrs: &[Msr], cpuid: &[kvm::kvm_cpuid_entry2]) -> Result<Vec<kvm::kvm_msr_entry>> {
    let mut entries: Vec<_> = msrs
        .iter()
        .filter_map(|msr| Some(kvm::kvm_msr_entry { index: msr.index, data: msr.value?, reserved: 0 }))
        .collect();
    entries.sort_by_key(|entry| match entry.index {
        msr::TSC => 0,
        msr::TSC_DEADLINE => 2,
        _ => 1,
    });
    let vcpu = fresh_vcpu(cpuid)?;
    loop {
        let list = kvm::Msrs::from_entries(&entries).map_err(|error| format!("too many MSRs: {error:?}"))?;
        let taken = vcpu.set_msrs(&list).or_say("set MSRs")?;
        if taken == entries.len() {
            return Ok(entries);
        }
        entries.remove(taken);
    }
}

fn fresh_vcpu(cpuid: &[kvm::kvm_cpuid_entry2]) -> Result<VcpuFd> {
    let kvm = Kvm::new().or_say("open /dev/kvm")?;
    let vm = kvm.create_vm().or_say("create a VM")?;
    vm.create_irq_chip().or_say("create an irqchip")?;
    let vcpu = vm.create_vcpu(0).or_say("create a vCPU")?;
    let list = kvm::CpuId::from_entries(cpuid).map_err(|error| format!("too many leaves: {error:?}"))?;
    vcpu.set_cpuid2(&list).or_say("set CPUID")?;
    Ok(vcpu)
}
