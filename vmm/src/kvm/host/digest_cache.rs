//! Caches this host's feature digest in `volt-vmm/host-features` of the user's cache directory, so that a
//! restore need not query KVM (0.3 ms).
//!
//! The file holds a key and the digest, a line each. A program accepts a digest only under its own key. The
//! key changes with everything that the digest depends on:
//!
//! - the boot, and with it the CPU and the kernel
//! - each load of KVM's modules, and with it their parameters (reading these takes as long as querying KVM)
//! - microcode
//! - the parts of the digest and the version of its algorithm ([`cpuid::COVERED`])
//!
//! Program versions whose digests differ have different keys, and each replaces the other's file. A few
//! parameters of KVM's modules can change while they are loaded (`vmentry_l1d_flush` and with it MSR 0x10a).
//! The key does not cover them: a digest decides only whether CPUID is compared, and a restore checks MSRs
//! anyway.
//!
//! A file that other users could have written is not read. A file that cannot be read or written only costs
//! time.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{HostIdentity, KvmModules};
use crate::kvm::cpuid;
use crate::partial;
use crate::paths;

const NAME: &str = "host-features";
/// Longest file in bytes. A key has some 200.
const MAX_LEN: usize = 1024;
const DIGEST_LEN: usize = 32;

/// The conditions under which a digest was computed, as one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DigestKey(String);

impl DigestKey {
    /// Returns the key of this host with these modules; none if the boot has no id.
    pub(super) fn of_this_host(modules: &KvmModules) -> Option<Self> {
        let boot_id = line_of(Path::new("/proc/sys/kernel/random/boot_id"))?;
        let microcode = microcode(Path::new("/sys/devices/system/cpu"), || HostIdentity::now().microcode);
        Some(Self::of(&boot_id, modules, &microcode, cpuid::COVERED))
    }

    /// Joins the parts of a key. `covered` identifies the parts and the version of a digest.
    fn of(boot_id: &str, modules: &KvmModules, microcode: &str, covered: u64) -> Self {
        let KvmModules { vendor, inodes: [kvm, module] } = modules;
        let mut key = [boot_id, vendor, microcode].join(" ");
        for number in [*kvm, *module, covered] {
            let _ = write!(key, " {number:x}"); // writing to a String cannot fail
        }
        Self(key.replace('\n', " "))
    }
}

/// Returns the microcode's revision, if it can change within a boot: only the kernel's driver loads microcode
/// after the boot, and most VMs have no driver. The driver's file is read first, because /proc/cpuinfo
/// (`from_cpuinfo`) takes five times as long.
fn microcode(cpus: &Path, from_cpuinfo: impl FnOnce() -> String) -> String {
    match line_of(&cpus.join("cpu0/microcode/version")) {
        Some(revision) => revision,
        None if paths::metadata(&cpus.join("microcode")).is_ok() => from_cpuinfo(),
        None => "booted".to_owned(),
    }
}

/// Reads the first line of a file of the kernel's. `read_to_string` would make three more system calls,
/// because these files have no length.
fn line_of(path: &Path) -> Option<String> {
    let mut text = [0; 64];
    let read = paths::open_to_read(path).and_then(|mut file| file.read(&mut text)).ok()?;
    std::str::from_utf8(&text[..read]).ok()?.lines().next().map(str::to_owned)
}

/// Reads the digest that is cached under this key.
pub(super) fn read(key: &DigestKey) -> Option<String> {
    read_in(&directory()?, key)
}

/// Caches a digest. The file is replaced atomically.
pub(super) fn write(key: &DigestKey, digest: &str) -> io::Result<()> {
    let directory = directory().ok_or_else(|| io::Error::other("neither XDG_CACHE_HOME nor HOME is set"))?;
    write_in(&directory, key, digest)
}

/// Returns our directory in the user's cache. Root without a home uses `/run`.
fn directory() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let run = || rustix::process::geteuid().is_root().then(|| PathBuf::from("/run"));
    Some(base.or_else(run)?.join("volt-vmm"))
}

fn read_in(directory: &Path, key: &DigestKey) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = paths::open(directory.join(NAME), flags, 0).ok()?;
    // Metadata of the opened file, because another file may have its name by now.
    let found = file.metadata().ok()?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw() || found.uid() == 0;
    if !found.is_file() || !is_ours || found.mode() & 0o022 != 0 {
        return None;
    }
    let mut text = [0; MAX_LEN];
    let read = (&file).read(&mut text).ok()?;
    let text = std::str::from_utf8(&text[..read]).ok()?;
    let digest = text.strip_prefix(&key.0)?.strip_prefix('\n')?.strip_suffix('\n')?;
    (digest.len() == DIGEST_LEN && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then(|| digest.to_owned())
}

fn write_in(directory: &Path, key: &DigestKey, digest: &str) -> io::Result<()> {
    paths::make_dirs(directory, 0o700)?;
    partial::remove_abandoned_files(directory, NAME);
    let (new, mut file) = partial::create_file(directory, NAME, 0o600)?;
    let written = file.write_all(format!("{}\n{digest}\n", key.0).as_bytes());
    let renamed = written.and_then(|()| paths::rename(&new, &directory.join(NAME), true));
    if renamed.is_err() {
        let _ = paths::remove_file(&new);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use std::fs;

    use super::*;
    use crate::testing::{ScratchDir, skip};

    const DIGEST: &str = "0123456789abcdef0123456789abcdef";

    const MODULES: KvmModules = KvmModules { vendor: "kvm_amd", inodes: [1, 2] };

    fn key(boot_id: &str) -> DigestKey {
        DigestKey::of(boot_id, &MODULES, "0x1", 7)
    }

    #[test]
    fn digest_is_cached_under_its_key_and_replaced() {
        let scratch = ScratchDir::new();
        let directory = scratch.0.join("made");
        assert_eq!(read_in(&directory, &key("a")), None);
        write_in(&directory, &key("a"), DIGEST).unwrap();
        assert_eq!(read_in(&directory, &key("a")).unwrap(), DIGEST);
        assert_eq!(read_in(&directory, &key("b")), None);
        write_in(&directory, &key("b"), DIGEST).unwrap();
        assert_eq!(
            (read_in(&directory, &key("a")), read_in(&directory, &key("b"))),
            (None, Some(DIGEST.into()))
        );
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
        let found = fs::metadata(directory.join(NAME)).unwrap();
        assert_eq!(found.mode() & 0o777, 0o600);
    }

    #[test]
    fn file_that_others_could_have_written_is_not_read() {
        let scratch = ScratchDir::new();
        let (directory, file) = (scratch.0.clone(), scratch.0.join(NAME));
        let is_accepted = || read_in(&directory, &key("a")).is_some();
        write_in(&directory, &key("a"), DIGEST).unwrap();
        for (mode, is_read) in [(0o644, true), (0o664, false), (0o646, false), (0o600, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_accepted(), is_read, "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
            assert!(!is_accepted());
            std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        }
        let elsewhere = directory.join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        assert!(!is_accepted());
        fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert!(!is_accepted(), "the read does not wait for a writer of the pipe");
    }

    #[test]
    fn damaged_text_is_not_a_digest() {
        let scratch = ScratchDir::new();
        write_in(&scratch.0, &key("a"), DIGEST).unwrap();
        let file = scratch.0.join(NAME);
        let whole = fs::read(&file).unwrap();
        for text in
            [&whole[..whole.len() - 1], &whole[..whole.len() - 9], &[&whole[..], b"x"].concat(), b"", b"\xff"]
        {
            fs::write(&file, text).unwrap();
            assert_eq!(read_in(&scratch.0, &key("a")), None);
        }
    }

    #[test]
    fn key_changes_with_everything_that_the_digest_depends_on() {
        let keys = [
            DigestKey::of("boot", &MODULES, "0x1", 7),
            DigestKey::of("another boot", &MODULES, "0x1", 7),
            DigestKey::of("boot", &KvmModules { vendor: "kvm_intel", ..MODULES }, "0x1", 7),
            DigestKey::of("boot", &KvmModules { inodes: [9, 2], ..MODULES }, "0x1", 7),
            DigestKey::of("boot", &KvmModules { inodes: [1, 9], ..MODULES }, "0x1", 7),
            DigestKey::of("boot", &MODULES, "0x2", 7),
            DigestKey::of("boot", &MODULES, "0x1", 8),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|before| before != key), "{at}");
        }
    }

    #[test]
    fn microcode_comes_from_the_driver_if_the_kernel_has_it() {
        let scratch = ScratchDir::new();
        let found = || microcode(&scratch.0, || "of cpuinfo".to_owned());
        assert_eq!(found(), "booted");
        fs::create_dir_all(scratch.0.join("microcode")).unwrap();
        assert_eq!(found(), "of cpuinfo", "the first CPU may be offline");
        fs::create_dir_all(scratch.0.join("cpu0/microcode")).unwrap();
        fs::write(scratch.0.join("cpu0/microcode/version"), "0x2b0004d0\n").unwrap();
        assert_eq!(found(), "0x2b0004d0");
    }

    #[test]
    fn key_of_this_host_names_its_boot_and_microcode() {
        let Some(modules) = KvmModules::loaded() else { return skip("KVM is no module here") };
        let key = DigestKey::of_this_host(&modules).unwrap().0;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert!(key.starts_with(&format!("{} {} ", boot_id.trim(), modules.vendor)), "{key}");
        if Path::new("/sys/devices/system/cpu/microcode").exists() {
            assert!(key.contains(&format!(" {} ", HostIdentity::current().microcode)), "{key}");
        }
    }
}
