//! The root file system: an image under a place for changes.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open, statfs};
use rustix::mount::{MountFlags, mount_move};
use rustix::process::chroot;
use volt_job::job::{Root, Upper as UpperKind};

use super::mounts;
use crate::volumes::{disks, mount_file_system};

const LOWER: &str = "/volt/lower";
const UPPER: &str = "/volt/upper";
const ROOT: &str = "/volt/root";
/// Options of overlayfs.
///
/// - `index=off`: an upper stays usable on an equal image at another place, as with Docker.
/// - `metacopy=off`: a file of the upper is whole, so that no attribute there points at other content.
/// - `redirect_dir=on`: a directory of the image can be renamed, instead of an error EXDEV.
/// - `xino=auto`: files keep their inode numbers when they change, if the numbers leave bits free.
///
/// All are named, because each kernel has defaults of its own.
const OPTIONS: &str = "index=off,metacopy=off,redirect_dir=on,xino=auto";
const RAMFS: u64 = 0x8584_58f6;
const TMPFS: u64 = 0x0102_1994;

/// The file system of changes. Its mount has no path once the root is switched.
pub(super) struct Upper(pub(super) OwnedFd);

/// Mounts the root file system below the initramfs.
pub(super) fn mount(root: &Root) -> Result<Upper, String> {
    for path in [LOWER, UPPER, ROOT] {
        fs::create_dir_all(path).map_err(|error| format!("cannot make {path}: {error}"))?;
    }
    let on_disk = |what: &str, name: &str, path, kind, flags| {
        let disk = disks::find(name)?;
        mount_file_system(&disk, path, kind, flags, "")
            .map_err(|error| format!("cannot mount the {what} {name} as {kind}: {error}"))
    };
    on_disk("image", &root.lower, LOWER, "erofs", MountFlags::RDONLY)?;
    match &root.upper {
        UpperKind::Disk(name) => on_disk("upper disk", name, UPPER, "ext4", MountFlags::empty())?,
        UpperKind::Memory => mount_file_system("tmpfs", UPPER, "tmpfs", MountFlags::empty(), "mode=0755")
            .map_err(|error| format!("cannot mount tmpfs for changes: {error}"))?,
    }
    let [upper, work] = ["upper", "work"].map(|name| format!("{UPPER}/{name}"));
    for path in [&upper, &work] {
        fs::create_dir_all(path).map_err(|error| format!("cannot make {path}: {error}"))?;
    }
    let options = format!("lowerdir={LOWER},upperdir={upper},workdir={work},{OPTIONS}");
    mount_file_system("overlay", ROOT, "overlay", MountFlags::empty(), &options)
        .map_err(|error| format!("cannot mount overlayfs ({options}): {error}"))?;
    let opened = open(UPPER, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    opened.map(Upper).map_err(|error| format!("cannot open {UPPER}: {error}"))
}

/// Makes the mounted file system the root, and frees the memory of the initramfs.
pub(super) fn switch() -> Result<(), String> {
    for path in mounts::first_paths() {
        let to = format!("{ROOT}{path}");
        fs::create_dir_all(&to).map_err(|error| format!("cannot make {path} in the image: {error}"))?;
        mount_move(path, &to).map_err(|error| format!("cannot move {path} into the image: {error}"))?;
    }
    clear_initramfs();
    let switched = std::env::set_current_dir(ROOT)
        .and_then(|()| Ok(mount_move(".", "/")?))
        .and_then(|()| Ok(chroot(".")?))
        .and_then(|()| std::env::set_current_dir("/"));
    switched.map_err(|error| format!("cannot switch to the image: {error}"))
}

/// Removes all files of the initramfs. The running program stays as long as it runs.
fn clear_initramfs() {
    let in_memory = statfs("/").is_ok_and(|found| [RAMFS, TMPFS].contains(&(found.f_type as u64)));
    if in_memory && let Ok(root) = fs::metadata("/") {
        clear(Path::new("/"), root.dev());
    }
}

/// Directories under a mount stay.
fn clear(directory: &Path, device: u64) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match fs::symlink_metadata(&path) {
            Ok(found) if found.dev() != device => {}
            Ok(found) if found.is_dir() => {
                clear(&path, device);
                let _ = fs::remove_dir(&path);
            }
            _ => drop(fs::remove_file(&path)),
        }
    }
}
