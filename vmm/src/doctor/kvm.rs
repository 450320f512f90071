//! Examines `/dev/kvm`: its module, its API, and the capabilities that volt-vmm needs or uses.

use kvm_bindings as b;
use kvm_ioctls::Kvm as Handle;
use serde::Serialize;

use super::host::Host;
use super::{Finding, Level};
use crate::kvm::API_VERSION;
use crate::kvm::host::kvm_module;

/// Facts from `/dev/kvm`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Kvm {
    /// Version of the KVM API.
    pub api_version: i32,
    /// The module behind it, such as `kvm_intel`; absent if none is visible.
    pub module: Option<&'static str>,
    /// Most vCPUs of a VM.
    pub max_vcpus: usize,
    /// Most memory slots of a VM.
    pub max_memory_slots: usize,
    /// Capabilities that volt-vmm needs or uses.
    pub capabilities: Vec<Capability>,
}

/// A capability of KVM.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Capability {
    /// As the KVM API names it, without `KVM_CAP_`.
    pub name: &'static str,
    /// KVM's answer; 0 if the capability is missing.
    pub value: i32,
    /// Whether every VM needs the capability.
    pub needed: bool,
    /// Use of the capability in volt-vmm.
    pub what: &'static str,
}

/// Name, number, whether every VM needs the capability, and its use.
const CAPABILITIES: [(&str, u32, bool, &str); 23] = [
    ("USER_MEMORY", b::KVM_CAP_USER_MEMORY, true, "guest memory"),
    ("IRQCHIP", b::KVM_CAP_IRQCHIP, true, "interrupt chips in the kernel"),
    ("PIT2", b::KVM_CAP_PIT2, true, "interval timer"),
    ("SET_TSS_ADDR", b::KVM_CAP_SET_TSS_ADDR, true, "real mode on Intel"),
    ("IMMEDIATE_EXIT", b::KVM_CAP_IMMEDIATE_EXIT, true, "pausing without losing an exit"),
    ("MP_STATE", b::KVM_CAP_MP_STATE, true, "snapshot: started and halted vCPUs"),
    ("VCPU_EVENTS", b::KVM_CAP_VCPU_EVENTS, true, "snapshot: pending exceptions"),
    ("DEBUGREGS", b::KVM_CAP_DEBUGREGS, true, "snapshot: debug registers"),
    ("XSAVE", b::KVM_CAP_XSAVE, true, "snapshot: FPU, SSE and AVX"),
    ("XCRS", b::KVM_CAP_XCRS, true, "snapshot: XCR0, the states that the guest enabled"),
    ("ADJUST_CLOCK", b::KVM_CAP_ADJUST_CLOCK, true, "snapshot: the guest's clock"),
    ("XSAVE2", b::KVM_CAP_XSAVE2, false, "snapshot: state beyond 4 KiB"),
    ("TSC_DEADLINE_TIMER", b::KVM_CAP_TSC_DEADLINE_TIMER, false, "the guest's cheapest timer"),
    ("KVMCLOCK_CTRL", b::KVM_CAP_KVMCLOCK_CTRL, false, "no false lockup reports after a pause"),
    ("TSC_CONTROL", b::KVM_CAP_TSC_CONTROL, false, "restore on a host of another TSC frequency"),
    ("READONLY_MEM", b::KVM_CAP_READONLY_MEM, false, "read-only guest memory"),
    ("IRQFD", b::KVM_CAP_IRQFD, false, "virtio interrupts"),
    ("IOEVENTFD", b::KVM_CAP_IOEVENTFD, false, "virtio notifications"),
    ("SIGNAL_MSI", b::KVM_CAP_SIGNAL_MSI, false, "message-signalled interrupts"),
    ("SPLIT_IRQCHIP", b::KVM_CAP_SPLIT_IRQCHIP, false, "VMs made and closed faster"),
    ("MANUAL_DIRTY_LOG", b::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, false, "dirty log in small steps"),
    ("DIRTY_LOG_RING", b::KVM_CAP_DIRTY_LOG_RING, false, "dirty pages without a scan"),
    ("GET_TSC_KHZ", b::KVM_CAP_GET_TSC_KHZ, false, "snapshot: the TSC's frequency"),
];

impl Kvm {
    pub(super) fn examine(kvm: &Handle) -> Self {
        let capability = |(name, number, needed, what): (_, u32, _, _)| Capability {
            name,
            value: kvm.check_extension_raw(number.into()).max(0),
            needed,
            what,
        };
        Self {
            api_version: kvm.get_api_version(),
            module: kvm_module(),
            max_vcpus: kvm.get_max_vcpus(),
            max_memory_slots: kvm.get_nr_memslots(),
            capabilities: CAPABILITIES.map(capability).into(),
        }
    }

    /// Whether KVM has all capabilities that every VM needs.
    pub(super) fn is_sufficient(&self) -> bool {
        self.api_version == API_VERSION
            && self.capabilities.iter().all(|found| found.value > 0 || !found.needed)
    }

    /// Whether KVM runs unmodified Linux. Assumed if the module is invisible (built in, or another `/sys`).
    pub(super) fn runs_linux(&self) -> bool {
        self.module != Some("kvm_pvm")
    }

    pub(super) fn findings(&self, host: &Host) -> Vec<Finding> {
        let mut findings = vec![self.api_finding(), self.module_finding(host)];
        let missing = |needed: bool| {
            let missing = self.capabilities.iter().filter(|found| found.value == 0 && found.needed == needed);
            let names: Vec<_> = missing.map(|found| format!("{} ({})", found.name, found.what)).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        if let Some(names) = missing(true) {
            let advice = "use a newer kernel, or a host whose KVM is kvm_intel or kvm_amd";
            findings.push(Finding::new(
                Level::Problem,
                format!("KVM lacks capabilities that volt-vmm needs: {names}"),
                advice,
            ));
        }
        match missing(false) {
            Some(names) => findings.push(Finding::new(
                Level::Note,
                format!("KVM lacks optional capabilities: {names}"),
                "volt-vmm works without them; a newer kernel or CPU has them",
            )),
            None => findings.push(Finding::available("KVM lists every capability that volt-vmm uses")),
        }
        findings
    }

    fn api_finding(&self) -> Finding {
        let what = format!(
            "/dev/kvm opens, API version {}; up to {} vCPUs and {} memory slots per VM",
            self.api_version, self.max_vcpus, self.max_memory_slots
        );
        if self.api_version == API_VERSION {
            return Finding::ok(what);
        }
        Finding::new(
            Level::Problem,
            what,
            format!("volt-vmm needs version {API_VERSION}: use a newer kernel"),
        )
    }

    fn module_finding(&self, host: &Host) -> Finding {
        match self.module {
            Some("kvm_pvm") => Finding::new(
                Level::Warning,
                "KVM's module is kvm_pvm: it emulates the guest's kernel mode in software, and no unmodified \
                 Linux guest gets to user space on it",
                "small freestanding guests run. For Linux guests use a host with kvm_intel or kvm_amd, turn \
                 on nested virtualization for this machine, or use the lab (scripts/lab.sh), a real kvm_amd \
                 under emulation",
            ),
            Some(module) => {
                let nested = if host.is_virtual { ", nested in another hypervisor" } else { "" };
                Finding::available(format!("KVM's module is {module}{nested}, which runs Linux guests"))
            }
            None => Finding::new(
                Level::Note,
                "KVM's module is not visible in /sys/module",
                "no action is needed if guests run; the module's settings are unknown",
            ),
        }
    }
}

/// The finding for a `/dev/kvm` that cannot be opened.
pub(super) fn no_kvm(error: &kvm_ioctls::Error, host: &Host) -> Finding {
    let what = format!("/dev/kvm cannot be opened: {}", std::io::Error::from_raw_os_error(error.errno()));
    let advice = match error.errno() {
        libc::EACCES | libc::EPERM => {
            "give this user access: `sudo usermod -aG kvm $USER` and log in again (in a container: pass \
             --device /dev/kvm)"
        }
        libc::ENOENT | libc::ENXIO | libc::ENODEV if host.has_virtualization => {
            "load the module (`sudo modprobe kvm_intel` or `kvm_amd`); in a container, pass --device \
             /dev/kvm"
        }
        libc::ENOENT | libc::ENXIO | libc::ENODEV if host.is_virtual => {
            "this host is a virtual machine: turn on nested virtualization for it, or use the lab \
             (scripts/lab.sh)"
        }
        libc::ENOENT | libc::ENXIO | libc::ENODEV => {
            "the CPU offers no virtualization: turn it on in the firmware's settings (VT-x or AMD-V)"
        }
        _ => "the kernel's log (dmesg) may name the cause",
    };
    Finding::new(Level::Problem, what, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_kvm_advice(errno: i32, has_virtualization: bool, is_virtual: bool) -> String {
        let host = Host { has_virtualization, is_virtual, ..Host::examine() };
        let finding = no_kvm(&kvm_ioctls::Error::new(errno), &host);
        assert_eq!(finding.level, Level::Problem);
        finding.advice.unwrap()
    }

    #[test]
    fn each_cause_has_its_own_advice() {
        assert!(no_kvm_advice(libc::EACCES, true, false).contains("usermod"));
        assert!(no_kvm_advice(libc::ENOENT, true, false).contains("modprobe"));
        assert!(no_kvm_advice(libc::ENOENT, false, true).contains("nested"));
        assert!(no_kvm_advice(libc::ENOENT, false, false).contains("firmware"));
    }

    #[test]
    fn missing_capability_is_a_finding() {
        let capability = |name, value, needed| Capability { name, value, needed, what: "w" };
        let mut kvm = Kvm {
            api_version: API_VERSION,
            module: Some("kvm_amd"),
            max_vcpus: 1,
            max_memory_slots: 1,
            capabilities: vec![capability("A", 1, true), capability("B", 0, false)],
        };
        let levels = |kvm: &Kvm| kvm.findings(&Host::examine()).iter().map(|f| f.level).max().unwrap();
        assert!(kvm.is_sufficient() && kvm.runs_linux());
        assert_eq!(levels(&kvm), Level::Note);
        kvm.capabilities.push(capability("C", 0, true));
        assert!(!kvm.is_sufficient());
        assert_eq!(levels(&kvm), Level::Problem);
    }
}
