//! The file in which this host's feature digest is kept, so that a restore need not ask KVM (0.3 ms): `volt-vmm/host-features` in the
//! user's cache.
//!
//! The file holds a key and the digest, a line each. A program takes a digest only under its own key. The key
//! changes with all that the digest depends on:
//!
//! - the boot, and with it the CPU and the kernel
//! - each load of KVM's modules, and with it their parameters (to read these takes as long as to ask KVM)
//! - microcode
//! - the parts of the digest and the version of its algorithm ([`cpuid::COVERED`])
//!
//! Programs of different versions on one host have different keys: each replaces the other's file. A few
//! parameters of KVM's modules change while they are loaded (`vmentry_l1d_flush` and with it MSR 0x10a).
//! The key does not follow them: a digest decides only whether CPUID is compared, and a restore checks MSRs
//! anyway.
//!
//! A file that others could have written is not read, and one that cannot be read or written costs time only.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Host, Loads};
use crate::kvm::cpuid;
use crate::partial;

const NAME: &str = "host-features";
/// Bytes. A key has some 200.
const LONGEST: usize = 1024;
const DIGEST_LEN: usize = 32;

/// What a digest was computed under, in one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key(String);

impl Key {
    /// Makes the key of this host under this load of KVM's modules; none if the boot has no id.
    pub(super) fn here(loads: &Loads) -> Option<Self> {
        let boot_id = line_of(Path::new("/proc/sys/kernel/random/boot_id"))?;
        let microcode = microcode(Path::new("/sys/devices/system/cpu"), || Host::now().microcode);
        Some(Self::of(&boot_id, loads, &microcode, cpuid::COVERED))
    }

    /// `covered` stands for the parts and the version of a digest.
    fn of(boot_id: &str, loads: &Loads, microcode: &str, covered: u64) -> Self {
        let Loads { vendor, numbers: [kvm, module] } = loads;
        let mut key = [boot_id, vendor, microcode].join(" ");
        for number in [*kvm, *module, covered] {
            let _ = write!(key, " {number:x}"); // to a String: cannot fail
        }
        Self(key.replace('\n', " "))
    }
}

/// The microcode's revision, if it can change within a boot. The kernel's driver alone loads it then, and a
/// host without the driver, as most VMs are, keeps what it booted with. The driver's file is read first:
/// /proc/cpuinfo (`known`) takes five times as long.
fn microcode(cpus: &Path, known: impl FnOnce() -> String) -> String {
    match line_of(&cpus.join("cpu0/microcode/version")) {
        Some(revision) => revision,
        None if cpus.join("microcode").exists() => known(),
        None => "booted".to_owned(),
    }
}

/// The first line of a file of the kernel's. Such a file tells no length: a `read_to_string` asks for one,
/// and reads twice more.
fn line_of(path: &Path) -> Option<String> {
    let mut text = [0; 64];
    let read = File::open(path).and_then(|mut file| file.read(&mut text)).ok()?;
    std::str::from_utf8(&text[..read]).ok()?.lines().next().map(str::to_owned)
}

/// The digest that was kept under this key.
pub(super) fn read(key: &Key) -> Option<String> {
    read_in(&directory()?, key)
}

/// Keeps a digest. Whoever reads sees all of it or what was there before.
pub(super) fn write(key: &Key, digest: &str) -> io::Result<()> {
    let directory = directory().ok_or_else(|| io::Error::other("neither XDG_CACHE_HOME nor HOME is set"))?;
    write_in(&directory, key, digest)
}

/// The user's cache; root has `/run` where no home is known.
fn directory() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let run = || rustix::process::geteuid().is_root().then(|| PathBuf::from("/run"));
    Some(base.or_else(run)?.join("volt-vmm"))
}

fn read_in(directory: &Path, key: &Key) -> Option<String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(directory.join(NAME)).ok()?;
    // What is open, not what may lie there by now.
    let found = file.metadata().ok()?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw() || found.uid() == 0;
    if !found.is_file() || !is_ours || found.mode() & 0o022 != 0 {
        return None;
    }
    let mut text = [0; LONGEST];
    let read = (&file).read(&mut text).ok()?;
    let text = std::str::from_utf8(&text[..read]).ok()?;
    let digest = text.strip_prefix(&key.0)?.strip_prefix('\n')?.strip_suffix('\n')?;
    (digest.len() == DIGEST_LEN && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then(|| digest.to_owned())
}

fn write_in(directory: &Path, key: &Key, digest: &str) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    partial::remove_abandoned_files(directory, NAME);
    let (new, mut file) = partial::create_file(directory, NAME, 0o600)?;
    let written = file.write_all(format!("{}\n{digest}\n", key.0).as_bytes());
    let renamed = written.and_then(|()| fs::rename(&new, directory.join(NAME)));
    if renamed.is_err() {
        let _ = fs::remove_file(&new);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::testing::skip;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef";

    /// A directory of its own for a test, removed with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("volt-kept-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const LOADS: Loads = Loads { vendor: "kvm_amd", numbers: [1, 2] };

    fn key(boot_id: &str) -> Key {
        Key::of(boot_id, &LOADS, "0x1", 7)
    }

    #[test]
    fn a_digest_is_kept_under_its_key_and_replaced() {
        let scratch = Scratch::new("replaced");
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
    fn a_file_that_others_could_have_written_is_not_read() {
        let scratch = Scratch::new("others");
        let (directory, file) = (scratch.0.clone(), scratch.0.join(NAME));
        let kept = || read_in(&directory, &key("a")).is_some();
        write_in(&directory, &key("a"), DIGEST).unwrap();
        for (mode, is_read) in [(0o644, true), (0o664, false), (0o646, false), (0o600, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(kept(), is_read, "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
            assert!(!kept());
            std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        }
        let elsewhere = directory.join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        assert!(!kept());
        fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert!(!kept(), "nobody waits for a pipe");
    }

    #[test]
    fn damaged_text_is_not_a_digest() {
        let scratch = Scratch::new("damaged");
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
    fn all_that_a_digest_depends_on_is_in_its_key() {
        let keys = [
            Key::of("boot", &LOADS, "0x1", 7),
            Key::of("another boot", &LOADS, "0x1", 7),
            Key::of("boot", &Loads { vendor: "kvm_intel", ..LOADS }, "0x1", 7),
            Key::of("boot", &Loads { numbers: [9, 2], ..LOADS }, "0x1", 7),
            Key::of("boot", &Loads { numbers: [1, 9], ..LOADS }, "0x1", 7),
            Key::of("boot", &LOADS, "0x2", 7),
            Key::of("boot", &LOADS, "0x1", 8),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|before| before != key), "{at}");
        }
    }

    #[test]
    fn microcode_is_asked_of_the_driver_and_only_where_there_is_one() {
        let scratch = Scratch::new("microcode");
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
        let Some(loads) = Loads::here() else { return skip("KVM is no module here") };
        let key = Key::here(&loads).unwrap().0;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert!(key.starts_with(&format!("{} {} ", boot_id.trim(), loads.vendor)), "{key}");
        if Path::new("/sys/devices/system/cpu/microcode").exists() {
            assert!(key.contains(&format!(" {} ", Host::this().microcode)), "{key}");
        }
    }
}
