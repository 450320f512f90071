//! The identity of this host for a snapshot: its CPU and its KVM.
//!
//! ```text
//! HostIdentity    for people: vendor, microcode, kernel
//! feature_digest  for the check at a restore: a digest of all that KVM offers, cached in a file
//!                 until the next boot (digest_cache)
//! ```

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use kvm_ioctls::Kvm;
use serde::{Deserialize, Serialize};

use super::cpuid;
use super::msr;
use crate::error::Result;
use crate::paths;
use crate::sync::lock;

mod digest_cache;

/// The identity of a host. Hosts with equal identities may offer different features: firmware settings,
/// kernel parameters or an outer hypervisor may differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostIdentity {
    /// `GenuineIntel`, `AuthenticAMD`.
    pub cpu_vendor: String,
    /// The CPU's signature: family, model and stepping in decimal, such as `25/17/1`.
    pub cpu_signature: String,
    /// Microcode revision.
    pub microcode: String,
    /// Kernel release and version.
    pub kernel: String,
    /// The module that runs guests: `kvm_intel`, `kvm_amd`, or another.
    pub kvm_module: String,
}

/// The value of a field that the kernel does not report.
const UNKNOWN: &str = "unknown";

impl HostIdentity {
    /// Returns the identity of this host. Reads the CPU once in a process, because the file takes 40 us to
    /// read, which would delay forks. A failed read is repeated by the next call.
    #[must_use]
    pub fn current() -> Self {
        static FIRST: OnceLock<HostIdentity> = OnceLock::new();
        match FIRST.get() {
            // Another module can be loaded while no VM exists.
            Some(first) => Self { kvm_module: kvm_module().unwrap_or(UNKNOWN).to_owned(), ..first.clone() },
            None => Self::now().cached_in(&FIRST),
        }
    }

    /// Caches the identity for later calls, if it has the CPU.
    fn cached_in(self, first: &OnceLock<Self>) -> Self {
        if self.has_cpu() { first.get_or_init(|| self).clone() } else { self }
    }

    /// Whether the kernel reported the CPU.
    fn has_cpu(&self) -> bool {
        // Microcode does not count: under some hypervisors the kernel never reports it.
        !self.cpu_vendor.contains(UNKNOWN) && !self.cpu_signature.contains(UNKNOWN)
    }

    /// Reads the identity of this host from the kernel. The CPUID instruction would be slower in a VM, where
    /// it exits to the hypervisor.
    fn now() -> Self {
        // The first CPU's entry suffices. The whole file takes long to read on a large host.
        let mut start = [0; 512];
        let read = paths::open_to_read("/proc/cpuinfo").and_then(|mut file| file.read(&mut start));
        Self::from_cpuinfo(&String::from_utf8_lossy(&start[..read.unwrap_or(0)]), kvm_module())
    }

    fn from_cpuinfo(cpuinfo: &str, kvm_module: Option<&str>) -> Self {
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

/// Returns a digest of the features that KVM offers guests: supported CPUID features and feature MSRs, as 32
/// hex digits. On hosts with equal digests a guest finds the same features.
///
/// KVM is queried once per boot. Then the digest comes from a file that only this user or root can write
/// ([`digest_cache`]). A process reads the file once per load of KVM's modules.
///
/// # Errors
/// Returns an error if the file does not have the digest, and KVM cannot be opened or refuses.
pub fn feature_digest() -> Result<String> {
    if let Some(kept) = lock(&KEPT).upgrade() {
        return Ok(kept.digest.clone());
    }
    static LAST: Mutex<Option<(KvmModules, String)>> = Mutex::new(None);
    let modules = KvmModules::loaded();
    let last = lock(&LAST).clone();
    if let (Some(modules), Some((last_modules, digest))) = (&modules, last)
        && *modules == last_modules
    {
        return Ok(digest);
    }
    let digest = digest_with(modules.as_ref())?;
    *lock(&LAST) = modules.map(|modules| (modules, digest.clone()));
    Ok(digest)
}

/// The features that KVM offers, as long as this is held. An open `/dev/kvm` keeps KVM's modules loaded, so
/// that [`feature_digest`] need not look whether they are the same. In a confined thread each look is a
/// request to another process.
#[derive(Debug)]
pub struct KeptFeatures {
    _kvm: Kvm,
    digest: String,
}

/// Those that are held.
static KEPT: Mutex<Weak<KeptFeatures>> = Mutex::new(Weak::new());

impl KeptFeatures {
    /// Keeps the modules loaded. Callers share one descriptor, unless two of them are the first at once.
    ///
    /// # Errors
    /// As [`super::open`] and [`feature_digest`].
    pub fn keep() -> Result<Arc<Self>> {
        if let Some(kept) = lock(&KEPT).upgrade() {
            return Ok(kept);
        }
        // Opened first: the modules cannot change from here on.
        let kvm = super::open()?;
        let kept = Arc::new(Self { _kvm: kvm, digest: feature_digest()? });
        *lock(&KEPT) = Arc::downgrade(&kept);
        Ok(kept)
    }
}

fn digest_with(modules: Option<&KvmModules>) -> Result<String> {
    let key = modules.and_then(digest_cache::DigestKey::of_this_host);
    if let Some(digest) = key.as_ref().and_then(digest_cache::read) {
        return Ok(digest);
    }
    let kvm = super::open()?;
    let digest = cpuid::digest(&cpuid::supported(&kvm)?, &msr::features(&kvm)?);
    if let Some(key) = key
        && let Err(error) = digest_cache::write(&key, &digest)
    {
        log::debug!("cannot cache the digest of this host's KVM: {error}");
    }
    Ok(digest)
}

/// The loaded modules of KVM. A module that is loaded again compares unequal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KvmModules {
    vendor: &'static str,
    /// Inodes of the directories in sysfs of `kvm` and the vendor's module. Each load of a module has its
    /// own.
    inodes: [u64; 2],
}

impl KvmModules {
    /// Returns the loaded modules; none if KVM is built into the kernel.
    fn loaded() -> Option<Self> {
        let (vendor, inode) = VENDORS.into_iter().find_map(|name| Some((name, module_inode(name)?)))?;
        Some(Self { vendor, inodes: [module_inode("kvm")?, inode] })
    }
}

/// The modules that run guests. A host loads one of them.
const VENDORS: [&str; 3] = ["kvm_intel", "kvm_amd", "kvm_pvm"];

/// Returns the inode of a module's directory in sysfs, if the module is loaded.
fn module_inode(module: &str) -> Option<u64> {
    paths::metadata(["/sys/module/", module].concat().as_ref()).map(|found| found.ino()).ok()
}

/// Returns the name of the loaded KVM module that runs guests on this host.
#[must_use]
pub fn kvm_module() -> Option<&'static str> {
    VENDORS.into_iter().find(|name| module_inode(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_that_could_not_be_read_is_not_cached() {
        let first = OnceLock::new();
        let unread = HostIdentity::from_cpuinfo("", Some("kvm_intel"));
        assert_eq!(unread.clone().cached_in(&first), unread);
        assert_eq!(first.get(), None);
        let cpuinfo = "vendor_id: GenuineIntel\ncpu family: 6\nmodel: 143\nstepping: 8\nmicrocode: 0x2b";
        let read = HostIdentity::from_cpuinfo(cpuinfo, Some("kvm_intel"));
        assert_eq!(read.clone().cached_in(&first), read);
        assert_eq!(first.get(), Some(&read));
    }

    #[test]
    fn kept_features_are_those_of_the_host_and_shared() {
        if crate::kvm::open().is_err() {
            return crate::testing::skip("no KVM here");
        }
        let looked_up = digest_with(KvmModules::loaded().as_ref()).unwrap();
        let kept = KeptFeatures::keep().unwrap();
        assert_eq!((&kept.digest, feature_digest().unwrap()), (&looked_up, looked_up.clone()));
        assert!(Arc::ptr_eq(&kept, &KeptFeatures::keep().unwrap()));
    }

    #[test]
    fn cpu_is_read_from_cpuinfo() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
                       model name\t: X: Y\nstepping\t: 8\nmicrocode\t: 0x2b0004d0\ncpu MHz\t\t: 21";
        let host = HostIdentity::from_cpuinfo(cpuinfo, Some("kvm_intel"));
        assert_eq!((host.cpu_vendor.as_str(), host.cpu_signature.as_str()), ("GenuineIntel", "6/143/8"));
        assert_eq!(host.microcode, "0x2b0004d0");
        let here = HostIdentity::current();
        assert_eq!((HostIdentity::current(), HostIdentity::now()), (here.clone(), here.clone()));
        assert!(!here.cpu_signature.contains("unknown") && here.cpu_vendor != "unknown", "{here:?}");
    }
}
