//! The file in which this host's feature digest is kept, so that a restore need not ask KVM (0.3 ms): `volt-vmm/host-features` in the
//! user's cache.
//!
//! It holds a key and the digest, a line each. The key changes with all that the digest depends on: the boot; each load of KVM's
//! modules, which fixes the parameters that shape what they offer (those are read-only afterwards; to read all parameters takes as
//! long as to ask KVM); microcode; and what volt-vmm looks at. A file that others could have written is not read, and one that
//! cannot be read or written costs time only.

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
        let mut boot_id = [0; 64];
        // A file of /proc tells no length: a `read_to_string` asks for one, and reads twice more.
        let read = File::open("/proc/sys/kernel/random/boot_id").and_then(|mut file| file.read(&mut boot_id));
        let boot_id = std::str::from_utf8(&boot_id[..read.ok()?]).ok()?.trim();
        let host = Host::with_module(Some(loads.vendor));
        Some(Self::of(boot_id, &loads.numbers, &host, &cpuid::digest(&[], &[])))
    }

    /// `looked_at` stands for what a digest covers.
    fn of(boot_id: &str, loads: &[u64], host: &Host, looked_at: &str) -> Self {
        let Host { cpu_vendor, cpu_signature, microcode, kernel, kvm_module } = host;
        let mut key = format!("{boot_id} {looked_at} {cpu_vendor} {cpu_signature} {microcode} {kvm_module}");
        for load in loads {
            let _ = write!(key, " {load}"); // to a String: cannot fail
        }
        key.push(' ');
        key.push_str(kernel);
        Self(key.replace('\n', " "))
    }
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

    fn key(boot_id: &str) -> Key {
        Key::of(boot_id, &[1, 2], &Host::this(), "x")
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
        let host = Host::this();
        let other = || "other".to_owned();
        let keys = [
            Key::of("boot", &[1, 2], &host, "x"),
            Key::of("another boot", &[1, 2], &host, "x"),
            Key::of("boot", &[9, 2], &host, "x"),
            Key::of("boot", &[1, 9], &host, "x"),
            Key::of("boot", &[1, 2], &host, "y"),
            Key::of("boot", &[1, 2], &Host { cpu_vendor: other(), ..host.clone() }, "x"),
            Key::of("boot", &[1, 2], &Host { cpu_signature: other(), ..host.clone() }, "x"),
            Key::of("boot", &[1, 2], &Host { microcode: other(), ..host.clone() }, "x"),
            Key::of("boot", &[1, 2], &Host { kernel: other(), ..host.clone() }, "x"),
            Key::of("boot", &[1, 2], &Host { kvm_module: other(), ..host.clone() }, "x"),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|before| before != key), "{at}");
        }
    }
}
