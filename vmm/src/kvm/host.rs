//! Who this host is, as far as a snapshot cares: the CPU and the KVM that the guest was shown.
//!
//! ```text
//! Host            what people read of it: vendor, microcode, kernel
//! feature_digest  what decides: a digest of all that KVM offers, kept in a file of the user's until the next boot (kept)
//! ```

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, OnceLock};

use serde::{Deserialize, Serialize};

use super::cpuid;
use super::msr;
use crate::error::Result;
use crate::sync::lock;

mod kept;

/// Identity of a host. Two that are equal may still differ in what their KVM offers: by the firmware's settings, by parameters of the
/// kernel, or by the hypervisor that they run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// `GenuineIntel`, `AuthenticAMD`.
    pub cpu_vendor: String,
    /// Family, model and stepping in decimal, as `25/17/1`: the CPU's signature.
    pub cpu_signature: String,
    /// Microcode revision.
    pub microcode: String,
    /// Kernel release and version.
    pub kernel: String,
    /// The module that runs guests: `kvm_intel`, `kvm_amd`, or another.
    pub kvm_module: String,
}

/// Stands for a field that the kernel does not tell.
const UNKNOWN: &str = "unknown";

impl Host {
    /// The host this process runs on, with the microcode that it had when the kernel first told it: the file
    /// takes 40 us to read, which a fork would notice. A read that fails is repeated by the next call.
    #[must_use]
    pub fn this() -> Self {
        static FIRST: OnceLock<Host> = OnceLock::new();
        match FIRST.get() {
            // Another module can be loaded while there is no VM.
            Some(first) => Self { kvm_module: kvm_module().unwrap_or(UNKNOWN).to_owned(), ..first.clone() },
            None => Self::now().kept_in(&FIRST),
        }
    }

    /// Keeps a host for later calls if the kernel told of its CPU.
    fn kept_in(self, first: &OnceLock<Self>) -> Self {
        if self.is_read() { first.get_or_init(|| self).clone() } else { self }
    }

    /// Whether the kernel told of the CPU.
    fn is_read(&self) -> bool {
        // Under some hypervisors the kernel never tells the microcode.
        !self.cpu_vendor.contains(UNKNOWN) && !self.cpu_signature.contains(UNKNOWN)
    }

    /// The host as it is now. The kernel tells of the CPU: CPUID itself leaves for the hypervisor where this is
    /// a VM, which takes longer than all the rest.
    fn now() -> Self {
        // The first CPU's entry begins with all that is needed, and on a large host the whole file takes long.
        let mut start = [0; 512];
        let read = File::open("/proc/cpuinfo").and_then(|mut file| file.read(&mut start));
        Self::described_by(&String::from_utf8_lossy(&start[..read.unwrap_or(0)]), kvm_module())
    }

    fn described_by(cpuinfo: &str, kvm_module: Option<&str>) -> Self {
        let field = |name: &str| {
            let mut pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            pairs.find(|(key, _)| key.trim_end() == name).map_or(UNKNOWN, |(_, value)| value.trim())
        };
        let uname = rustix::system::uname();
        Self {
            cpu_vendor: field("vendor_id").to_owned(),
            cpu_signature: format!("{}/{}/{}", field("cpu family"), field("model"), field("stepping")),
            microcode: field("microcode").to_owned(),
            kernel: format!("{} {}", uname.release().to_string_lossy(), uname.version().to_string_lossy()),
            kvm_module: kvm_module.unwrap_or(UNKNOWN).to_owned(),
        }
    }
}

/// A digest of what this host's KVM offers guests: supported CPUID features and feature MSRs. 32 hex digits. Where two hosts have the
/// same, a guest of one has all that it was shown on the other.
///
/// KVM is asked once a boot; then a file that only this user or root can write tells ([`kept`]). A process
/// reads the file once: as long as KVM's modules stay loaded, KVM offers what it did.
///
/// # Errors
/// The file does not tell, and KVM cannot be opened or refuses to.
pub fn feature_digest() -> Result<String> {
    static KNOWN: Mutex<Option<(Loads, String)>> = Mutex::new(None);
    let loads = Loads::here();
    let known = lock(&KNOWN).clone();
    if let (Some(loads), Some((under, digest))) = (&loads, known)
        && *loads == under
    {
        return Ok(digest);
    }
    let digest = digest_under(loads.as_ref())?;
    *lock(&KNOWN) = loads.map(|loads| (loads, digest.clone()));
    Ok(digest)
}

fn digest_under(loads: Option<&Loads>) -> Result<String> {
    let key = loads.and_then(kept::Key::here);
    if let Some(digest) = key.as_ref().and_then(kept::read) {
        return Ok(digest);
    }
    let kvm = super::open()?;
    let digest = cpuid::digest(&cpuid::supported(&kvm)?, &msr::features(&kvm)?);
    if let Some(key) = key
        && let Err(error) = kept::write(&key, &digest)
    {
        log::debug!("the digest of this host's KVM is not kept, and will be computed again: {error}");
    }
    Ok(digest)
}

/// KVM's modules, and which load of them this is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loads {
    vendor: &'static str,
    /// A directory of sysfs has a number of its own, and a module that is loaded again has another.
    numbers: [u64; 2],
}

impl Loads {
    /// Returns none if KVM is no module.
    fn here() -> Option<Self> {
        let (vendor, number) = VENDORS.into_iter().find_map(|name| Some((name, load_of(name)?)))?;
        Some(Self { vendor, numbers: [load_of("kvm")?, number] })
    }
}

/// The modules of which one runs guests.
const VENDORS: [&str; 3] = ["kvm_intel", "kvm_amd", "kvm_pvm"];

/// The number of a module's directory, if the module is loaded.
fn load_of(module: &str) -> Option<u64> {
    fs::metadata(["/sys/module/", module].concat()).map(|found| found.ino()).ok()
}

/// Name of the loaded KVM module that runs guests on this host.
#[must_use]
pub fn kvm_module() -> Option<&'static str> {
    VENDORS.into_iter().find(|name| load_of(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_that_could_not_be_read_is_not_kept() {
        let first = OnceLock::new();
        let unread = Host::described_by("", Some("kvm_intel"));
        assert_eq!(unread.clone().kept_in(&first), unread);
        assert_eq!(first.get(), None);
        let cpuinfo = "vendor_id: GenuineIntel\ncpu family: 6\nmodel: 143\nstepping: 8\nmicrocode: 0x2b";
        let read = Host::described_by(cpuinfo, Some("kvm_intel"));
        assert_eq!(read.clone().kept_in(&first), read);
        assert_eq!(first.get(), Some(&read));
    }

    #[test]
    fn a_cpu_is_known_by_the_kernels_words() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
                       model name\t: X: Y\nstepping\t: 8\nmicrocode\t: 0x2b0004d0\ncpu MHz\t\t: 21";
        let host = Host::described_by(cpuinfo, Some("kvm_intel"));
        assert_eq!((host.cpu_vendor.as_str(), host.cpu_signature.as_str()), ("GenuineIntel", "6/143/8"));
        assert_eq!(host.microcode, "0x2b0004d0");
        let here = Host::this();
        assert_eq!((Host::this(), Host::now()), (here.clone(), here.clone()));
        assert!(!here.cpu_signature.contains("unknown") && here.cpu_vendor != "unknown", "{here:?}");
    }
}
