//! One vCPU: its registers at boot, its state for a snapshot, and the call that runs it.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use kvm_bindings::{kvm_lapic_state, kvm_mp_state, kvm_xcrs};
use kvm_ioctls::{Kvm, VcpuFd};
use serde::{Deserialize, Serialize};
use volt_kernel::EntryState;

use super::clock::ClockMoved;
use super::cpuid;
use super::cpuid::CpuidEntry;
use super::exit;
use super::exit::VmExit;
use super::msr;
use super::msr::{Msr, MsrList};
use super::pre_fault;
use super::tsc;
use super::tsc::{Counter, SavedTsc, VcpuTsc};
use super::vm::VmHandle;
use super::xsave::XsaveArea;
use super::{KvmContext, kvm_error};
use crate::config::cpu::MsrMask;
use crate::error::{Error, Result};
use crate::kvm::serde_mirror::{DebugRegs, Events, Regs, Sregs, Xcr};
use crate::persist::{Base64Bytes, Persist};

/// Bytes of the local APIC's register page in KVM's calls.
const LAPIC_LEN: usize = size_of::<kvm_lapic_state>();
const _: () = assert!(LAPIC_LEN == 1024);

/// Local vector table: timer, LINT0, LINT1 (Intel SDM volume 3, table 11-1).
const LVT_TIMER: usize = 0x320;
const LVT_LINT0: usize = 0x350;
const LVT_LINT1: usize = 0x360;
const LVT_MASKED: u32 = 1 << 16;
const LVT_TIMER_MODE: u32 = 3 << 17;
const LVT_TIMER_TSC_DEADLINE: u32 = 2 << 17;
const LVT_EXTINT: u32 = 7 << 8;
const LVT_NMI: u32 = 4 << 8;
/// The register that starts the local APIC's own counter, unless it holds 0 (Intel SDM volume 3, 11.5.4).
const INITIAL_COUNT: usize = 0x380;

/// Bits that distinguish PAE paging from 32-bit and 64-bit paging (Intel SDM volume 3, 4.1.1).
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
/// The bits of CR3 with the address of the page tables' root (Intel SDM volume 3, 4.5).
const CR3_TABLE: u64 = 0x000f_ffff_ffff_f000;
const EFER_LMA: u64 = 1 << 10;

/// The bit of XCR0 that is always set.
const XCR0_X87: u64 = 1;

/// A vCPU. Its thread locks it while it runs. Any thread may save or restore a parked vCPU.
#[derive(Debug)]
pub struct Vcpu {
    fd: VcpuFd,
    kvm: Arc<Kvm>,
    id: u8,
    /// The CPUID leaves of the guest as they were set. KVM's answer also contains features that the guest
    /// switched on since, and kvm_pvm answers with the host's leaves.
    cpuid: Vec<CpuidEntry>,
    xsave: XsaveArea,
    tsc_rate: tsc::Rate,
}

/// The whole state of one vCPU in KVM.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpuState {
    /// `KVM_MP_STATE_*`.
    pub mp_state: u32,
    /// CPUID leaves of the guest.
    pub cpuid: Vec<CpuidEntry>,
    /// TSC frequency in kHz.
    pub tsc_khz: u32,
    /// Offset of the guest's TSC from the host's in cycles, modulo 2^64, if KVM reports it. Identifies vCPUs
    /// with equal TSCs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc_offset: Option<u64>,
    /// General registers.
    pub regs: Regs,
    /// Special registers.
    pub sregs: Sregs,
    /// Debug registers.
    pub debug_regs: DebugRegs,
    /// Extended control registers.
    pub xcrs: Vec<Xcr>,
    /// The XSAVE area, in the CPU's layout.
    pub xsave: Base64Bytes,
    /// Registers of the local APIC, one every 16 bytes.
    pub lapic: Base64Bytes,
    /// Model-specific registers.
    pub msrs: MsrList,
    /// Pending and injected events.
    pub events: Events,
}

impl Vcpu {
    /// Adds vCPU `id` to the VM.
    pub(crate) fn create(kvm: &Arc<Kvm>, vm: &VmHandle, id: u8) -> Result<Self> {
        let fd = vm.fd().create_vcpu(u64::from(id)).context(&format!("KVM_CREATE_VCPU of vCPU {id}"))?;
        let (cpuid, xsave, tsc_rate) = (Vec::new(), XsaveArea::of(kvm), tsc::Rate::default());
        Ok(Self { fd, kvm: Arc::clone(kvm), id, cpuid, xsave, tsc_rate })
    }

    /// Sets up a fresh vCPU for a cold boot: CPUID, the MSRs that firmware would set, those of a CPU
    /// template, and local interrupts. Application processors need no more, because they wait for their SIPI.
    pub(crate) fn prepare_boot(&mut self, cpuid: &[CpuidEntry], template: &[MsrMask]) -> Result<()> {
        self.prepare_cpu(cpuid, template)?;
        let mut lapic = self.fd.get_lapic().context("KVM_GET_LAPIC")?;
        for (register, mode) in [(LVT_LINT0, LVT_EXTINT), (LVT_LINT1, LVT_NMI)] {
            for (byte, value) in lapic.regs[register..].iter_mut().zip(mode.to_le_bytes()) {
                *byte = value.cast_signed();
            }
        }
        self.fd.set_lapic(&lapic).context("KVM_SET_LAPIC")
    }

    /// As [`Vcpu::prepare_boot`], without local interrupts.
    pub(super) fn prepare_cpu(&mut self, cpuid: &[CpuidEntry], template: &[MsrMask]) -> Result<()> {
        self.set_cpuid(cpuid)?;
        self.enable_xstate(cpuid)?;
        let misc_enable_fast_strings = Msr { index: msr::MISC_ENABLE, value: Some(1) };
        let mtrrs_on_write_back = Msr { index: msr::MTRR_DEF_TYPE, value: Some(1 << 11 | 6) };
        msr::write(&self.fd, [misc_enable_fast_strings, mtrrs_on_write_back])?;
        if template.is_empty() {
            return Ok(());
        }
        let saved = msr::indices(&self.kvm, &self.fd, cpuid::shows_hyperv(cpuid))?;
        msr::template::apply(&self.fd, template, &saved)
    }

    /// Sets the leaves of a fresh vCPU, and returns these of its MSRs.
    pub(super) fn fresh_msrs(&mut self, cpuid: &[CpuidEntry], indices: &[u32]) -> Result<Vec<Msr>> {
        self.set_cpuid(cpuid)?;
        msr::read(&self.fd, indices)
    }

    /// Enables every XSAVE component of the guest, as its kernel does early. An emulated AMD processor (QEMU
    /// 7.2) does not report a guest's XSETBV to KVM, so KVM would reset the new XCR0.
    fn enable_xstate(&self, cpuid: &[CpuidEntry]) -> Result<()> {
        let Some(xstate) = cpuid.iter().find(|entry| (entry.function, entry.index) == (0xd, 0)) else {
            return Ok(());
        };
        let value = u64::from(xstate.edx) << 32 | u64::from(xstate.eax);
        let xcr0 = Xcr { xcr: 0, value: value | XCR0_X87 };
        self.fd.set_xcrs(&xcrs_to_kvm(&[xcr0])?).context("KVM_SET_XCRS")
    }

    /// Sets the registers of the boot vCPU as the kernel's boot protocol demands.
    pub(crate) fn set_entry(&self, entry: &EntryState) -> Result<()> {
        let mut sregs: Sregs = self.fd.get_sregs().context("KVM_GET_SREGS")?.into();
        let data = segment(&entry.data);
        sregs.cs = segment(&entry.code);
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        sregs.tr = segment(&entry.task);
        sregs.gdt.base = entry.gdt_base;
        sregs.gdt.limit = entry.gdt_limit;
        (sregs.idt.base, sregs.idt.limit) = (0, 0);
        (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (entry.cr0, entry.cr3, entry.cr4, entry.efer);
        self.fd.set_sregs(&sregs.into()).context("KVM_SET_SREGS")?;
        let regs = Regs {
            rip: entry.rip,
            rsp: entry.rsp,
            rbp: entry.rsp,
            rbx: entry.rbx,
            rsi: entry.rsi,
            rflags: 2,
            ..Default::default()
        };
        self.fd.set_regs(&regs.into()).context("KVM_SET_REGS")
    }

    /// Runs the guest until its next exit. Always called on the same thread, because KVM waits for an RCU
    /// grace period when the thread changes.
    pub(crate) fn run(&mut self) -> VmExit<'_> {
        match self.fd.run().map(|_| ()) {
            #[allow(unsafe_code)]
            // SAFETY: VcpuFd maps the whole area, and KVM_RUN has returned.
            Ok(()) => unsafe { exit::decode(self.fd.get_kvm_run()) },
            Err(error) => match error.errno() {
                // EAGAIN: an application processor woke before its SIPI.
                libc::EINTR | libc::EAGAIN => VmExit::Interrupted,
                libc::EFAULT => VmExit::Unreadable(exit::faulted_at(self.fd.get_kvm_run())),
                errno => VmExit::Failed(format!("KVM_RUN: {}", io::Error::from_raw_os_error(errno))),
            },
        }
    }

    /// Lets `KVM_RUN` return at once (1) or not (0).
    pub(crate) fn set_immediate_exit(&mut self, value: u8) {
        self.immediate_exit().store(value, Ordering::Relaxed);
    }

    /// Returns `kvm_run.immediate_exit`, which other threads set while the vCPU runs. Valid as long as the
    /// vCPU exists.
    #[allow(unsafe_code)]
    pub(crate) fn immediate_exit(&mut self) -> &AtomicU8 {
        let byte = std::ptr::from_mut(&mut self.fd.get_kvm_run().immediate_exit);
        // SAFETY: the byte is aligned, stays mapped as long as `self.fd` exists, and is accessed only
        // atomically.
        unsafe { AtomicU8::from_ptr(byte) }
    }

    /// Sets the signals that are blocked while the guest runs (KVM API, section 4.22). The thread blocks its
    /// kick everywhere else, so the kick is never lost and never reaches a handler.
    #[allow(unsafe_code)]
    pub(crate) fn block_signals_in_guest(&self, blocked: &libc::sigset_t) -> Result<()> {
        /// `struct kvm_signal_mask` with the kernel's `sigset_t` of 64 signals. kvm-ioctls lacks this call.
        #[repr(C)]
        struct SignalMask {
            len: u32,
            set: [u8; 8],
        }
        /// `_IOW(KVMIO, 0x8b, struct kvm_signal_mask)`, where the flexible array has size 0.
        const KVM_SET_SIGNAL_MASK: libc::Ioctl = 0x4004_ae8b;
        let mut set = [0; 8];
        for signal in 1..=64 {
            // SAFETY: `blocked` is an initialised set, and the number is a signal's.
            if unsafe { libc::sigismember(blocked, signal) } == 1 {
                set[(signal as usize - 1) / 8] |= 1 << ((signal - 1) % 8);
            }
        }
        let mask = SignalMask { len: 8, set };
        // SAFETY: the kernel reads `len` bytes after the header, and the struct holds as many.
        let result = unsafe {
            libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&self.fd), KVM_SET_SIGNAL_MASK, &raw const mask)
        };
        if result == 0 { Ok(()) } else { Err(kvm_error("KVM_SET_SIGNAL_MASK", kvm_ioctls::Error::last())) }
    }

    /// Maps guest physical addresses, in whole pages, before the guest touches them.
    ///
    /// # Errors
    /// As [`super::pre_fault::pre_fault`].
    pub(crate) fn pre_fault(&self, of: Range<u64>) -> io::Result<()> {
        pre_fault::pre_fault(&self.fd, of)
    }

    /// Tells the guest's watchdogs that it was paused. Has no effect on a guest without kvmclock.
    pub(crate) fn notify_paused(&self) -> Result<()> {
        match self.fd.kvmclock_ctrl() {
            Err(error) if error.errno() != libc::EINVAL => Err(kvm_error("KVM_KVMCLOCK_CTRL", error)),
            _ => Ok(()),
        }
    }

    /// Formats the instruction pointer for the message of a crash.
    pub(crate) fn location(&self) -> String {
        self.fd.get_regs().map_or_else(|_| String::new(), |regs| format!(" at rip {:#x}", regs.rip))
    }

    /// Returns the guest physical addresses that the CPU needs to deliver an exception: root of the page
    /// tables, descriptor tables, task state, code and stack. Leaves out those that KVM cannot translate.
    pub(crate) fn needed_by_exceptions(&self) -> Vec<u64> {
        let (Ok(sregs), Ok(regs)) = (self.fd.get_sregs(), self.fd.get_regs()) else { return Vec::new() };
        let root = (sregs.cr0 & CR0_PG != 0).then_some(sregs.cr3 & CR3_TABLE);
        let (code, stack) = (sregs.cs.base.wrapping_add(regs.rip), sregs.ss.base.wrapping_add(regs.rsp));
        let linear = [sregs.idt.base, sregs.gdt.base, sregs.tr.base, code, stack];
        let translated = linear.into_iter().filter_map(|address| self.fd.translate_gva(address).ok());
        let physical = translated.filter(|found| found.valid != 0).map(|found| found.physical_address);
        root.into_iter().chain(physical).collect()
    }

    /// Sets the CPUID leaves, unless they are set: KVM may refuse them on a vCPU that has run (KVM API,
    /// section 4.20).
    fn set_cpuid(&mut self, cpuid: &[CpuidEntry]) -> Result<()> {
        if self.cpuid == cpuid {
            return Ok(());
        }
        let list = cpuid::to_kvm(cpuid)
            .ok_or_else(|| Error::config("cpuid", format!("{} leaves are too many", cpuid.len())))?;
        self.fd.set_cpuid2(&list).context(&format!("KVM_SET_CPUID2 of vCPU {}", self.id))?;
        self.cpuid = cpuid.to_vec();
        Ok(())
    }

    /// Sets the TSC rate. Called before the TSC's value is set.
    pub(crate) fn set_tsc_rate(&mut self, state: &VcpuState) -> Result<()> {
        self.tsc_rate = tsc::set_rate(&self.kvm, &self.fd, self.tsc_rate, state.tsc_khz)?;
        Ok(())
    }

    fn tsc(&self) -> VcpuTsc<'_> {
        VcpuTsc { fd: &self.fd, rate: self.tsc_rate }
    }

    /// Continues the TSCs of a VM's vCPUs from their saved values, as far as the clock has moved and, where
    /// KVM tells the host's TSC, at the same distance from it. Called after all rates are set, and before a
    /// timer is armed.
    pub(crate) fn restore_tscs<'a>(
        vcpus: impl Iterator<Item = (&'a Self, &'a VcpuState)>,
        clock: ClockMoved,
    ) -> Result<()> {
        let of = |(vcpu, state): (&'a Self, &VcpuState)| Some((vcpu.tsc(), state.tsc()?));
        let counters: Vec<_> = vcpus.filter_map(of).collect();
        let at_clock = clock.host_tscs.and_then(|(then, now)| {
            let each = counters.iter().map(|(vcpu, saved)| Some((*vcpu, saved.at(then)?)));
            each.collect::<Option<Vec<_>>>().map(|counters| (counters, Some(now)))
        });
        let (counters, now) = at_clock.unwrap_or((counters, None));
        let later = |(vcpu, saved): (VcpuTsc<'a>, SavedTsc)| (vcpu, saved.later(clock.time));
        tsc::restore(&counters.into_iter().map(later).collect::<Vec<_>>(), now)
    }

    /// Restores all state except TSC, armed timers and events, ahead of the rest of a restore.
    pub(crate) fn prepare(&mut self, state: &VcpuState) -> Result<()> {
        self.restore_up_to_msrs(state)?;
        msr::write(&self.fd, state.msrs_without_timers())
    }

    /// Completes [`Vcpu::prepare`] in the order of [`Persist::restore`]. Restores the state that changes with
    /// time, the state that KVM accepts only with guest memory, and the events. The vCPU has not run since.
    pub(crate) fn refresh(&self, state: &VcpuState) -> Result<()> {
        if state.has_pae_paging() {
            self.fd.set_sregs(&state.sregs.into()).context("KVM_SET_SREGS")?;
        }
        if state.has_apic_countdown() {
            self.set_lapic(&state.lapic)?;
        }
        // A deadline of 0 need not be written: the vCPU has none yet.
        msr::write(&self.fd, state.deadline().filter(|deadline| deadline.value != Some(0)))?;
        self.fd.set_vcpu_events(&state.events.into()).context("KVM_SET_VCPU_EVENTS")
    }

    fn restore_up_to_msrs(&mut self, state: &VcpuState) -> Result<()> {
        // The callers restore TSC, MSRs and events.
        let VcpuState {
            mp_state,
            cpuid,
            tsc_khz: _,
            tsc_offset: _,
            regs,
            sregs,
            debug_regs,
            xcrs,
            xsave,
            lapic,
            msrs: _,
            events: _,
        } = state;
        self.set_cpuid(cpuid)?;
        self.fd.set_mp_state(kvm_mp_state { mp_state: *mp_state }).context("KVM_SET_MP_STATE")?;
        self.fd.set_regs(&(*regs).into()).context("KVM_SET_REGS")?;
        self.fd.set_sregs(&(*sregs).into()).context("KVM_SET_SREGS")?;
        self.fd.set_debug_regs(&(*debug_regs).into()).context("KVM_SET_DEBUGREGS")?;
        self.fd.set_xcrs(&xcrs_to_kvm(xcrs)?).context("KVM_SET_XCRS")?;
        self.xsave.write(&self.fd, xsave)?;
        self.set_lapic(lapic)
    }

    /// Reads the local APIC and the MSRs. An armed deadline is read first: a timer that fires between the
    /// reads then appears in both, which costs a spurious interrupt. In the other order it could appear in
    /// neither, and the guest would miss a wake-up.
    fn lapic_and_msrs(&self) -> Result<(Base64Bytes, MsrList)> {
        let deadline = msr::read(&self.fd, &[msr::TSC_DEADLINE])?[0];
        let lapic = self.fd.get_lapic().context("KVM_GET_LAPIC")?;
        let shows_hyperv = cpuid::shows_hyperv(&self.cpuid);
        let mut msrs = msr::read(&self.fd, &msr::indices(&self.kvm, &self.fd, shows_hyperv)?)?;
        if let Some(msr) = msrs.iter_mut().find(|msr| msr.index == msr::TSC_DEADLINE) {
            *msr = deadline;
        }
        Ok((Base64Bytes(lapic.regs.iter().map(|byte| byte.cast_unsigned()).collect()), MsrList(msrs)))
    }

    fn set_lapic(&self, bytes: &Base64Bytes) -> Result<()> {
        if bytes.0.len() != LAPIC_LEN {
            return Err(Error::config("lapic", format!("{} bytes, not {LAPIC_LEN}", bytes.0.len())));
        }
        let mut lapic = kvm_lapic_state::default();
        lapic.regs.iter_mut().zip(&bytes.0).for_each(|(to, from)| *to = from.cast_signed());
        self.fd.set_lapic(&lapic).context("KVM_SET_LAPIC")
    }
}

impl Persist for Vcpu {
    type State = VcpuState;

    /// Reads the MP state first, because this makes KVM process pending INIT and SIPI. Reads the events last,
    /// because the other calls may change them.
    fn save(&self) -> Result<VcpuState> {
        let Self { fd, kvm: _, id: _, cpuid, xsave, tsc_rate: _ } = self;
        let kvm_mp_state { mp_state } = fd.get_mp_state().context("KVM_GET_MP_STATE")?;
        let (lapic, msrs) = self.lapic_and_msrs()?;
        let xcrs = fd.get_xcrs().context("KVM_GET_XCRS")?;
        // The fields are evaluated in this order.
        Ok(VcpuState {
            mp_state,
            cpuid: cpuid.clone(),
            tsc_khz: fd.get_tsc_khz().context("KVM_GET_TSC_KHZ")?,
            tsc_offset: self.tsc().offset()?,
            regs: fd.get_regs().context("KVM_GET_REGS")?.into(),
            sregs: fd.get_sregs().context("KVM_GET_SREGS")?.into(),
            debug_regs: fd.get_debug_regs().context("KVM_GET_DEBUGREGS")?.into(),
            xcrs: xcrs.xcrs.iter().take(xcrs.nr_xcrs as usize).map(|&xcr| xcr.into()).collect(),
            xsave: xsave.read(fd)?,
            lapic,
            msrs,
            events: fd.get_vcpu_events().context("KVM_GET_VCPU_EVENTS")?.into(),
        })
    }

    /// Restores all state except the TSC, which [`Vcpu::set_tsc_rate`] and [`Vcpu::restore_tscs`] set for the
    /// whole VM. The order of the calls matters:
    ///
    /// 1. CPUID before the state that it allows
    /// 2. XCRs before the XSAVE area that they describe
    /// 3. special registers, which have the base of the local APIC, before the local APIC
    /// 4. local APIC before the MSR that arms its timer
    /// 5. events last, because other calls clear them
    fn restore(&mut self, state: &VcpuState) -> Result<()> {
        self.restore_up_to_msrs(state)?;
        msr::write(&self.fd, state.msrs_without_timers().chain(state.deadline()))?;
        self.fd.set_vcpu_events(&state.events.into()).context("KVM_SET_VCPU_EVENTS")
    }
}

impl VcpuState {
    fn msr(&self, index: u32) -> Option<Msr> {
        self.msrs.0.iter().find(|msr| msr.index == index).copied()
    }

    fn tsc(&self) -> Option<SavedTsc> {
        let value = self.msr(msr::TSC)?.value?;
        Some(SavedTsc { value, offset: self.tsc_offset, khz: self.tsc_khz })
    }

    /// Whether the guest uses PAE paging. KVM then reads the four top-level entries from guest memory when
    /// the control registers are set.
    fn has_pae_paging(&self) -> bool {
        let Sregs { cr0, cr4, efer, .. } = &self.sregs;
        cr0 & CR0_PG != 0 && cr4 & CR4_PAE != 0 && efer & EFER_LMA == 0
    }

    /// Whether the local APIC's counter runs. KVM has counted on since the state was set. The TSC-deadline
    /// mode has no counter.
    fn has_apic_countdown(&self) -> bool {
        let initial = self.lapic.0.get(INITIAL_COUNT..INITIAL_COUNT + 4);
        initial.is_none_or(|count| count != [0; 4])
    }

    /// Returns the MSRs to write, without TSC and deadline. Leaves out registers of Hyper-V if the guest has
    /// no Hyper-V: older snapshots contain them, and another kernel may lack them.
    fn msrs_without_timers(&self) -> impl Iterator<Item = Msr> {
        let shows_hyperv = cpuid::shows_hyperv(&self.cpuid);
        let is_written = move |msr: &&Msr| match msr.index {
            msr::TSC | msr::TSC_DEADLINE => false,
            index => shows_hyperv || !msr::is_hyperv(index),
        };
        self.msrs.0.iter().filter(is_written).copied()
    }

    /// Returns the deadline to arm. A deadline of 0 in deadline mode may have fired before its interrupt was
    /// delivered. It is armed for now: at worst the guest takes a spurious interrupt.
    fn deadline(&self) -> Option<Msr> {
        let deadline = self.msr(msr::TSC_DEADLINE)?;
        let timer = self.lapic.0.get(LVT_TIMER..LVT_TIMER + 4).and_then(|bytes| bytes.try_into().ok());
        let timer = timer.map_or(LVT_MASKED, u32::from_le_bytes);
        let waits = timer & LVT_TIMER_MODE == LVT_TIMER_TSC_DEADLINE && timer & LVT_MASKED == 0;
        Some(match deadline.value {
            Some(0) if waits => Msr { value: self.msr(msr::TSC).and_then(|tsc| tsc.value), ..deadline },
            _ => deadline,
        })
    }
}

fn xcrs_to_kvm(xcrs: &[Xcr]) -> Result<kvm_xcrs> {
    let mut list = kvm_xcrs::default();
    if xcrs.len() > list.xcrs.len() {
        return Err(Error::config("xcrs", format!("{} registers are too many", xcrs.len())));
    }
    list.nr_xcrs = xcrs.len() as u32;
    list.xcrs.iter_mut().zip(xcrs).for_each(|(to, &from)| *to = from.into());
    Ok(list)
}

fn segment(from: &volt_kernel::Segment) -> crate::kvm::serde_mirror::Segment {
    crate::kvm::serde_mirror::Segment {
        base: from.base,
        limit: from.limit,
        selector: from.selector,
        type_: from.kind,
        present: 1,
        dpl: 0,
        db: from.big.into(),
        s: from.code_or_data.into(),
        l: from.long.into(),
        g: from.granular.into(),
        avl: 0,
        unusable: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> VcpuState {
        let msr = |index, value| Msr { index, value: Some(value) };
        VcpuState {
            mp_state: 0,
            cpuid: Vec::new(),
            tsc_khz: 1,
            tsc_offset: None,
            regs: Regs::default(),
            sregs: Sregs::default(),
            debug_regs: DebugRegs::default(),
            xcrs: Vec::new(),
            xsave: Base64Bytes(Vec::new()),
            lapic: Base64Bytes(vec![0; LAPIC_LEN]),
            msrs: MsrList(vec![msr(0x6e0, 0), msr(0x174, 1), msr(0x4000_0118, 3), msr(0x10, 5000)]),
            events: Events::default(),
        }
    }

    #[test]
    fn deadline_that_may_have_fired_is_armed() {
        let mut state = state();
        let deadline = |state: &VcpuState| state.deadline().unwrap().value.unwrap();
        assert_eq!(deadline(&state), 0);
        state.lapic.0[LVT_TIMER..LVT_TIMER + 4]
            .copy_from_slice(&(LVT_TIMER_TSC_DEADLINE | 0xec).to_le_bytes());
        assert_eq!(deadline(&state), 5000);
        state.lapic.0[LVT_TIMER + 2] |= 1;
        assert_eq!(deadline(&state), 0);
        state.lapic.0.clear();
        assert_eq!(deadline(&state), 0);
    }

    #[test]
    fn prepared_registers_are_set_again_with_pae_paging_alone() {
        let mut state = state();
        for (cr0, cr4, efer, is_pae) in [
            (CR0_PG, CR4_PAE, 0, true),
            (CR0_PG, CR4_PAE, 1 << 8, true),
            (CR0_PG, CR4_PAE, EFER_LMA, false),
            (CR0_PG, 0, 0, false),
            (1, CR4_PAE, 0, false),
        ] {
            state.sregs = Sregs { cr0, cr4, efer, ..Sregs::default() };
            assert_eq!(state.has_pae_paging(), is_pae, "cr0 {cr0:#x}, cr4 {cr4:#x}, efer {efer:#x}");
        }
    }

    #[test]
    fn prepared_local_apic_is_set_again_if_its_counter_runs() {
        let mut state = state();
        assert!(!state.has_apic_countdown());
        state.lapic.0[INITIAL_COUNT + 3] = 1;
        assert!(state.has_apic_countdown());
        state.lapic.0.clear();
        assert!(state.has_apic_countdown(), "KVM refuses a state of the wrong length");
    }

    #[test]
    fn registers_of_hyper_v_are_written_only_if_the_guest_has_hyper_v() {
        let mut state = state();
        let written =
            |state: &VcpuState| state.msrs_without_timers().map(|msr| msr.index).collect::<Vec<_>>();
        assert_eq!(written(&state), [0x174]);
        let eax = u32::from_le_bytes(*b"Hv#1");
        state.cpuid.push(CpuidEntry { function: 0x4000_0001, eax, ..Default::default() });
        assert_eq!(written(&state), [0x174, 0x4000_0118]);
    }
}
