//! Mirrors of KVM's structures with readable serde. The serde of kvm-bindings writes opaque byte arrays.
//!
//! Each mirror is one list of fields, and converts both ways. The list is exhaustive: a new field of
//! kvm-bindings does not compile until it is saved or named as padding.

use kvm_bindings as kvm;
use serde::{Deserialize, Serialize};

/// Declares `$name` as a mirror of `$kvm`, with its saved fields and the padding that it ignores.
macro_rules! mirror {
    (
        $(#[$doc:meta])* $name:ident = $kvm:ident
        { $($field:ident : $type:ty),* $(,)? } ignoring { $($pad:ident),* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs)] // the fields are KVM's, under KVM's names
        #[allow(unnameable_types)] // public only in conversions from and to KVM's types
        pub struct $name { $(pub $field: $type),* }

        impl From<kvm::$kvm> for $name {
            fn from(kvm::$kvm { $($field,)* $($pad: _),* }: kvm::$kvm) -> Self {
                Self { $($field: $field.into()),* }
            }
        }

        impl From<$name> for kvm::$kvm {
            #[allow(clippy::needless_update)] // without padding
            fn from($name { $($field),* }: $name) -> Self {
                Self { $($field: $field.into(),)* ..Default::default() }
            }
        }
    };
}

mirror! {
    /// General registers (`struct kvm_regs`).
    Regs = kvm_regs {
        rax: u64, rbx: u64, rcx: u64, rdx: u64, rsi: u64, rdi: u64, rsp: u64, rbp: u64,
        r8: u64, r9: u64, r10: u64, r11: u64, r12: u64, r13: u64, r14: u64, r15: u64,
        rip: u64, rflags: u64,
    } ignoring {}
}

mirror! {
    /// A segment register with its hidden part (`struct kvm_segment`).
    Segment = kvm_segment {
        base: u64, limit: u32, selector: u16, type_: u8, present: u8, dpl: u8, db: u8, s: u8, l: u8, g: u8,
        avl: u8, unusable: u8,
    } ignoring { padding }
}

mirror! {
    /// A descriptor table register (`struct kvm_dtable`).
    DescriptorTable = kvm_dtable { base: u64, limit: u16 } ignoring { padding }
}

mirror! {
    /// Special registers (`struct kvm_sregs`).
    Sregs = kvm_sregs {
        cs: Segment, ds: Segment, es: Segment, fs: Segment, gs: Segment, ss: Segment, tr: Segment,
        ldt: Segment, gdt: DescriptorTable, idt: DescriptorTable,
        cr0: u64, cr2: u64, cr3: u64, cr4: u64, cr8: u64, efer: u64, apic_base: u64,
        interrupt_bitmap: [u64; 4],
    } ignoring {}
}

mirror! {
    /// Debug registers (`struct kvm_debugregs`).
    DebugRegs = kvm_debugregs { db: [u64; 4], dr6: u64, dr7: u64, flags: u64 } ignoring { reserved }
}

mirror! {
    /// A pending or injected exception.
    Exception = kvm_vcpu_events__bindgen_ty_1 {
        injected: u8, nr: u8, has_error_code: u8, pending: u8, error_code: u32,
    } ignoring {}
}

mirror! {
    /// An injected interrupt, and the interrupt shadow.
    Interrupt = kvm_vcpu_events__bindgen_ty_2 { injected: u8, nr: u8, soft: u8, shadow: u8 } ignoring {}
}

mirror! {
    /// A pending or injected NMI.
    Nmi = kvm_vcpu_events__bindgen_ty_3 { injected: u8, pending: u8, masked: u8 } ignoring { pad }
}

mirror! {
    /// System management mode.
    Smi = kvm_vcpu_events__bindgen_ty_4 {
        smm: u8, pending: u8, smm_inside_nmi: u8, latched_init: u8,
    } ignoring {}
}

mirror! {
    /// A pending triple fault.
    TripleFault = kvm_vcpu_events__bindgen_ty_5 { pending: u8 } ignoring {}
}

mirror! {
    /// Pending and injected events of a vCPU (`struct kvm_vcpu_events`).
    Events = kvm_vcpu_events {
        exception: Exception, interrupt: Interrupt, nmi: Nmi, sipi_vector: u32, flags: u32, smi: Smi,
        triple_fault: TripleFault, exception_has_payload: u8, exception_payload: u64,
    } ignoring { reserved }
}

mirror! {
    /// One CPUID leaf (`struct kvm_cpuid_entry2`).
    CpuidEntry = kvm_cpuid_entry2 {
        function: u32, index: u32, flags: u32, eax: u32, ebx: u32, ecx: u32, edx: u32,
    } ignoring { padding }
}

mirror! {
    /// One extended control register (`struct kvm_xcr`).
    Xcr = kvm_xcr { xcr: u32, value: u64 } ignoring { reserved }
}

mirror! {
    /// One channel of the 8254 (`struct kvm_pit_channel_state`).
    PitChannel = kvm_pit_channel_state {
        count: u32, latched_count: u16, count_latched: u8, status_latched: u8, status: u8, read_state: u8,
        write_state: u8, write_latch: u8, rw_mode: u8, mode: u8, bcd: u8, gate: u8, count_load_time: i64,
    } ignoring {}
}

mirror! {
    /// The clock of a VM in nanoseconds (`struct kvm_clock_data`).
    ClockState = kvm_clock_data {
        clock: u64, flags: u32, realtime: u64, host_tsc: u64,
    } ignoring { pad0, pad }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_is_readable_and_converts_both_ways() {
        let kvm = kvm::kvm_segment { base: 0x1000, selector: 8, type_: 11, present: 1, ..Default::default() };
        let text = serde_json::to_string(&Segment::from(kvm)).unwrap();
        assert!(text.starts_with(r#"{"base":4096,"limit":0,"selector":8,"type_":11,"#), "{text}");
        let back: Segment = serde_json::from_str(&text).unwrap();
        assert_eq!(kvm::kvm_segment::from(back), kvm);
        assert!(serde_json::from_str::<Segment>(&text.replace("selector", "selecter")).is_err());
    }
}
