//! Checks of permissions: devices, and the files of this user.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

use super::tree::{Tree, unreadable};
use super::{Answer, Verdict};

const UNPRIVILEGED: &str = "/proc/sys/vm/unprivileged_userfaultfd";
const USERFAULTFD: &str = "/dev/userfaultfd";
const KVM: &str = "/dev/kvm";
/// Permissions of others, and of group and others.
const OTHERS: u32 = 0o007;
const GROUP_AND_OTHERS: u32 = 0o077;

pub(super) fn userfaultfd(tree: &Tree) -> Answer {
    match tree.read(UNPRIVILEGED) {
        Ok(setting) if setting == "1" => {
            let advice = "`sudo sysctl -w vm.unprivileged_userfaultfd=0`, and give the users of volt-vmm \
                          access to /dev/userfaultfd: it makes races in the kernel easier to win";
            Answer::new(Verdict::Warning, UNPRIVILEGED, "allowed for every user", advice)
        }
        Err(error) => unreadable(UNPRIVILEGED, &error),
        Ok(_) => device(tree, USERFAULTFD),
    }
}

pub(super) fn kvm(tree: &Tree) -> Answer {
    device(tree, KVM)
}

/// Judges a device that only users of volt-vmm may open.
fn device(tree: &Tree, path: &str) -> Answer {
    let metadata = match tree.metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return unreadable(path, &error),
    };
    let found = shown(metadata.mode(), metadata.uid(), metadata.gid());
    if metadata.mode() & OTHERS != 0 {
        let advice = format!("`sudo chmod o= {path}`, and add the users of volt-vmm to its group");
        return Answer::new(Verdict::Warning, path, format!("{found}: open to every user"), advice);
    }
    Answer::ok(path, found)
}

pub(super) fn state_directory(tree: &Tree) -> Answer {
    own(tree, &tree.state(), 0o022, "chmod go-w")
}

pub(super) fn snapshot_key(tree: &Tree) -> Answer {
    own(tree, &format!("{}/snapshot.key", tree.state()), GROUP_AND_OTHERS, "chmod 0600")
}

/// Judges a file that lacks the permissions `forbidden` and belongs to this user.
fn own(tree: &Tree, path: &str, forbidden: u32, cure: &str) -> Answer {
    let metadata = match tree.metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Answer::ok(path, "none; a snapshot makes it when needed");
        }
        Err(error) => return unreadable(path, &error),
    };
    let found = shown(metadata.mode(), metadata.uid(), metadata.gid());
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.mode() & forbidden != 0 || !is_own || metadata.is_symlink() {
        let advice = format!("make it this user's (`chown`) and no link, then `{cure} {path}`");
        return Answer::new(Verdict::Bad, path, found, advice);
    }
    Answer::ok(path, found)
}

fn shown(mode: u32, uid: u32, gid: u32) -> String {
    format!("mode {:04o}, user {uid}, group {gid}", mode & 0o7777)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::testing::ScratchDir;

    /// Returns the verdict of a check on a file with this mode.
    fn verdict(check: fn(&Tree) -> Answer, path: &str, mode: u32) -> Verdict {
        let scratch = ScratchDir::new();
        let root = scratch.join("root");
        let at = |path: &str| root.join(path.trim_start_matches('/'));
        for (path, mode) in [(path, mode), (UNPRIVILEGED, 0o644)] {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), "0\n").unwrap();
            fs::set_permissions(at(path), Permissions::from_mode(mode)).unwrap();
        }
        check(&Tree::new(&root, Path::new("/state"))).verdict
    }

    #[test]
    fn devices_open_to_every_user_are_found() {
        for (check, path) in [(kvm as fn(&Tree) -> Answer, KVM), (userfaultfd, USERFAULTFD)] {
            assert_eq!(verdict(check, path, 0o660), Verdict::Ok);
            assert_eq!(verdict(check, path, 0o666), Verdict::Warning);
            assert_eq!(verdict(check, "/other", 0o600), Verdict::Unknown);
        }
    }

    #[test]
    fn files_that_others_can_use_are_found() {
        let key = "/state/snapshot.key";
        assert_eq!(verdict(snapshot_key, key, 0o600), Verdict::Ok);
        assert_eq!(verdict(snapshot_key, key, 0o640), Verdict::Bad);
        assert_eq!(verdict(state_directory, "/state", 0o755), Verdict::Ok);
        assert_eq!(verdict(state_directory, "/state", 0o777), Verdict::Bad);
    }
}
