//! Who this host is, as far as a snapshot cares: the CPU and the KVM that the guest was shown.

use std::fs;

use serde::{Deserialize, Serialize};

/// Identity of a host. Where two are equal, so is what their KVM offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// CPUID leaf 0: `GenuineIntel`, `AuthenticAMD`.
    pub cpu_vendor: String,
    /// CPUID leaf 1 EAX: family, model, stepping.
    pub cpu_signature: u32,
    /// Microcode revision, as the kernel reports it.
    pub microcode: String,
    /// Kernel release and version.
    pub kernel: String,
    /// The module that runs guests: `kvm_intel`, `kvm_amd`, or another.
    pub kvm_module: String,
}

impl Host {
    /// The host this process runs on.
    #[must_use]
    pub fn this() -> Self {
        let vendor = std::arch::x86_64::__cpuid(0);
        let bytes: Vec<u8> =
            [vendor.ebx, vendor.edx, vendor.ecx].into_iter().flat_map(u32::to_le_bytes).collect();
        let uname = rustix::system::uname();
        Self {
            cpu_vendor: String::from_utf8_lossy(&bytes).into_owned(),
            cpu_signature: std::arch::x86_64::__cpuid(1).eax,
            microcode: microcode(),
            kernel: format!("{} {}", uname.release().to_string_lossy(), uname.version().to_string_lossy()),
            kvm_module: kvm_module().unwrap_or("unknown").to_owned(),
        }
    }
}

/// Name of the loaded KVM module that runs guests on this host.
#[must_use]
pub fn kvm_module() -> Option<&'static str> {
    let modules = ["kvm_intel", "kvm_amd", "kvm_pvm"];
    modules.into_iter().find(|name| fs::exists(format!("/sys/module/{name}")).unwrap_or(false))
}

/// From sysfs; inside most VMs there is none there, and `/proc/cpuinfo` has it.
fn microcode() -> String {
    if let Ok(text) = fs::read_to_string("/sys/devices/system/cpu/cpu0/microcode/version") {
        return text.trim().to_owned();
    }
    // The first CPU's entry is all that is needed, and on a large host the rest takes long.
    let mut start = [0; 2048];
    let read =
        fs::File::open("/proc/cpuinfo").and_then(|mut file| std::io::Read::read(&mut file, &mut start));
    let text = String::from_utf8_lossy(&start[..read.unwrap_or(0)]);
    let line = text.lines().find(|line| line.starts_with("microcode"));
    line.and_then(|line| line.split(':').nth(1)).map_or_else(|| "unknown".to_owned(), |v| v.trim().to_owned())
}
