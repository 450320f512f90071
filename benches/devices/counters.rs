//! Events that the host counts during a measurement: they explain why one VMM is faster.

use std::fs;

/// Exits of guests to KVM, those of them that went on to the VMM, and switches from thread to thread; of
/// the whole host, on which nothing else should happen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub exits: Option<u64>,
    pub to_vmm: Option<u64>,
    pub switches: Option<u64>,
}

impl Counts {
    /// As they are now. KVM's are there where debugfs is mounted.
    pub fn now() -> Self {
        let of_kvm = |name: &str| {
            fs::read_to_string(format!("/sys/kernel/debug/kvm/{name}")).ok()?.trim().parse::<u64>().ok()
        };
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let switches = stat.lines().find_map(|line| line.strip_prefix("ctxt ")?.parse().ok());
        let to_vmm = of_kvm("mmio_exits").zip(of_kvm("io_exits")).map(|(mmio, io)| mmio + io);
        Self { exits: of_kvm("exits"), to_vmm, switches }
    }

    /// How many there were since `before`.
    pub fn since(self, before: Self) -> Self {
        let less = |now: Option<u64>, before: Option<u64>| Some(now?.wrapping_sub(before?));
        Self {
            exits: less(self.exits, before.exits),
            to_vmm: less(self.to_vmm, before.to_vmm),
            switches: less(self.switches, before.switches),
        }
    }
}
