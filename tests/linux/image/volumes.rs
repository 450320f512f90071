//! Disks beside the root file system: volumes, and directories of the host that are packed.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use volt_image::directory::Directory;
use volt_job::Job;
use volt_job::job::{FileSystem, Mount};
use volt_tests::disks::ext4;
use volt_tests::{Boot, Scratch, needs};

use super::{boot, end, job, run_job, script};

fn mount(disk: &str, path: &str, kind: FileSystem) -> Mount {
    let read_only = kind == FileSystem::Erofs;
    Mount { disk: disk.to_owned(), path: path.to_owned(), kind, read_only }
}

fn with_mounts(text: &str, mounts: &[Mount]) -> Job {
    Job { mounts: mounts.to_vec(), ..job(script(text)) }
}

/// Describes the boot of a job with one more disk.
fn boot_with_disk(scratch: &Scratch, job: &Job, disk: &Path, options: &str) -> Boot<'static> {
    boot(scratch, job).device(["--disk".to_owned(), format!("id=vol0,path={}{options}", disk.display())])
}

/// Asserts that the output has these lines in their order, with no other line among them.
fn assert_said(lines: &[String], expected: &[&str]) {
    let is_there = lines.windows(expected.len()).any(|window| window == expected);
    assert!(is_there, "{expected:#?} is not in {lines:#?}");
}

fn volume(scratch: &Scratch) -> PathBuf {
    let path = scratch.fresh("volume");
    ext4(&path, 64 << 20, &[]).unwrap();
    path
}

#[test]
fn volume_begins_with_files_of_the_image_and_keeps_changes_for_the_next_vm() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let disk = volume(&scratch);
    let at = |path: &str| [mount("vol0", path, FileSystem::Ext4)];
    // The end unmounts a volume that another file system covers, too.
    let text = "ls -1 /directory; echo kept >/directory/new; rm /directory/low; \
                busybox mount -t tmpfs tmpfs /directory; exit 3";
    let (ended, lines) =
        end(&mut boot_with_disk(&scratch, &with_mounts(text, &at("/directory")), &disk, "").start());
    assert_eq!(ended, "exit 3");
    assert_said(&lines, &["high", "lost+found", "low"]);
    super::upper::assert_clean(&disk);

    let text = "ls -1 /made/for/it; cat /made/for/it/new; stat -c %a /made/for/it; exit 4";
    let (ended, lines) =
        end(&mut boot_with_disk(&scratch, &with_mounts(text, &at("/made/for/it")), &disk, "").start());
    assert_eq!(ended, "exit 4");
    assert_said(&lines, &["high", "lost+found", "new", "kept", "755"]);
    super::upper::assert_clean(&disk);
}

#[test]
fn packed_directory_is_read_and_refuses_writes() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), scratch.path("packed"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "of the host\n").unwrap();
    chown(source.join("file"), Some(1234), Some(70_000)).unwrap();
    fs::set_permissions(source.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("file", source.join("link")).unwrap();
    Directory::read(&source).unwrap().write(&File::create(&image).unwrap(), [7; 16]).unwrap();
    let text = "exec 2>&1; cd /srv/data; cat link; stat -c '%a %u %g' file; echo x >file; ls -1";
    let job = with_mounts(text, &[mount("vol0", "/srv/data", FileSystem::Erofs)]);
    let (ended, lines) = end(&mut boot_with_disk(&scratch, &job, &image, ",ro").start());
    assert_eq!(ended, "exit 0");
    let refused = lines.iter().find(|line| line.contains("Read-only file system")).unwrap();
    assert_said(&lines, &["of the host", "640 1234 70000", refused, "file", "link"]);
}

#[test]
fn path_that_cannot_be_a_directory_ends_with_125_and_the_reason() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let disk = volume(&scratch);
    let refused = |path: &str| {
        let job = with_mounts("true", &[mount("vol0", path, FileSystem::Ext4)]);
        let (ended, lines) = end(&mut boot_with_disk(&scratch, &job, &disk, "").start());
        assert_eq!(ended, "exit 125", "{path}");
        lines.into_iter().find(|line| line.starts_with("volt-init: cannot")).unwrap_or_default()
    };
    assert_eq!(
        refused("/etc/passwd/below"),
        "volt-init: cannot make the directory /etc/passwd/below for the disk vol0: Not a directory \
         (os error 20)"
    );
    let job = with_mounts("true", &[mount("vol0", "/a/../b", FileSystem::Ext4)]);
    let (ended, lines) = run_job(&job);
    assert_eq!(ended, "exit 125");
    assert_said(&lines, &["volt-init: no disk can be mounted at \"/a/../b\": give a path without .."]);
}
