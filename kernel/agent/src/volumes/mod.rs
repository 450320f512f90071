//! Disks of the VM: how they are found, and those beside the root file system, which are volumes of the
//! host's user and packed directories. Process 1 mounts those of its job, and the agent those that come
//! later.

mod copy;
pub mod disks;
pub mod mounted;

use std::ffi::{CString, OsStr};
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, open, removexattr, setxattr};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use volt_job::job::{FileSystem, Mount};

/// The one entry of an empty ext4.
const LOST_AND_FOUND: &str = "lost+found";
/// The attribute of a volume that does not have all of the image's files yet.
const HALF_MADE: &str = "trusted.volt.half-made";

/// Mounts all disks. A path comes after those above it.
pub fn mount(all: &[Mount]) -> Result<(), String> {
    all.iter().try_for_each(|mount| Mount::check_path(&mount.path))?;
    in_order(all).into_iter().try_for_each(mount_one)
}

/// Mounts a file system.
pub fn mount_file_system(
    source: impl rustix::path::Arg,
    path: &str,
    kind: &str,
    flags: MountFlags,
    options: &str,
) -> Result<(), Errno> {
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(source, path, kind, flags, options.as_c_str())
}

fn in_order(all: &[Mount]) -> Vec<&Mount> {
    let mut all: Vec<_> = all.iter().collect();
    all.sort_by_key(|mount| Path::new(&mount.path).components().count());
    all
}

fn mount_one(mount: &Mount) -> Result<(), String> {
    let Mount { disk, path, kind, read_only } = mount;
    let failed = |act: &str, error: io::Error| format!("cannot {act} {path} for the disk {disk}: {error}");
    fs::create_dir_all(path).map_err(|error| failed("make the directory", error))?;
    // It still leads to the image's directory once the disk covers that.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let covered = open(path.as_str(), flags, Mode::empty()).map_err(|errno| failed("open", errno.into()))?;
    let is_written = !read_only && *kind == FileSystem::Ext4;
    let mode = if is_written { MountFlags::empty() } else { MountFlags::RDONLY };
    mount_file_system(disks::find(disk)?, path, kind.name(), mode, "").map_err(|errno| {
        let cure = match errno {
            Errno::ROFS => {
                "; its last VM was killed: use it once without :ro, so that its journal is replayed"
            }
            _ => "",
        };
        format!("cannot mount the disk {disk} on {path} as {}: {errno}{cure}", kind.name())
    })?;
    if is_written {
        fill_if_new(&covered, path).map_err(|error| failed("copy the image's files in", error))?;
    }
    Ok(())
}

/// Gives a new volume what the image has at its path, as docker does. Begins again where a VM was killed
/// meanwhile.
fn fill_if_new(covered: &OwnedFd, path: &str) -> io::Result<()> {
    let is_half_made = getxattr(path, HALF_MADE, &mut [0; 1][..]).is_ok();
    let of_image = fs::metadata("/")?.dev() == rustix::fs::fstat(covered)?.st_dev;
    if !of_image || !is_half_made && !is_empty(path)? {
        return Ok(());
    }
    setxattr(path, HALF_MADE, b"1", XattrFlags::empty())?;
    clear(path)?;
    let from = format!("/proc/self/fd/{}", covered.as_raw_fd());
    copy::directory(Path::new(&from), Path::new(path)).inspect_err(|_| drop(clear(path)))?;
    rustix::fs::syncfs(File::open(path)?)?;
    Ok(removexattr(path, HALF_MADE)?)
}

fn entries(path: &str) -> io::Result<Vec<DirEntry>> {
    let is_own = |entry: &DirEntry| entry.file_name() != OsStr::new(LOST_AND_FOUND);
    let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().filter(is_own).collect())
}

fn is_empty(path: &str) -> io::Result<bool> {
    Ok(entries(path)?.is_empty())
}

fn clear(path: &str) -> io::Result<()> {
    entries(path)?.iter().try_for_each(|entry| match entry.file_type()?.is_dir() {
        true => fs::remove_dir_all(entry.path()),
        false => fs::remove_file(entry.path()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_comes_after_those_above_it() {
        let mount = |path: &str| {
            let (disk, path) = (String::new(), path.to_owned());
            Mount { disk, path, kind: FileSystem::Ext4, read_only: false }
        };
        let all = ["/a/b/c", "/d//", "/a/b", "/e/./"].map(mount);
        let paths: Vec<_> = in_order(&all).iter().map(|mount| mount.path.as_str()).collect();
        assert_eq!(paths, ["/d//", "/e/./", "/a/b", "/a/b/c"]);
    }
}
