//! Empty ext4 disks, checked by e2fsck and used by the host's Linux.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};
use volt_image::ext4::{BLOCK, LARGEST, SMALLEST};
use volt_tests::disks::ext4;
use volt_tests::host::run;
use volt_tests::need::skip;
use volt_tests::{Scratch, needs, output};

use super::{Mounted, attributes};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const FEATURES: &str = "has_journal ext_attr dir_index filetype extent 64bit flex_bg sparse_super large_file \
                        huge_file dir_nlink extra_isize metadata_csum";

/// Makes a disk with the directories of an overlay.
fn make(image: &Path, size: u64) -> std::io::Result<()> {
    ext4(image, size, &["upper", "work"])
}

fn allocated(image: &Path) -> u64 {
    fs::metadata(image).unwrap().blocks() * 512
}

/// Asserts that e2fsck finds nothing to complain about.
fn assert_clean(image: &Path) {
    let done = output(Command::new("e2fsck").arg("-fn").arg(image));
    let told = String::from_utf8(done.stdout).unwrap();
    let is_usual = |line: &&str| line.starts_with("Pass ") || line.contains(" files (");
    assert!(done.status.success() && told.lines().all(|line| is_usual(&line)), "{}: {told}", image.display());
    assert_eq!(told.lines().count(), 6, "{}: {told}", image.display());
}

/// Returns a line of `dumpe2fs -h`.
fn told(image: &Path, name: &str) -> String {
    let told = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    let line = told.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {told}")).trim().to_owned()
}

/// A mounted disk. Linux must not complain of it until it is unmounted.
struct Disk {
    mounted: Option<Mounted>,
    root: PathBuf,
    device: String,
    /// The last line of the kernel's log before the mount, if the log can be read.
    last: Option<String>,
}

impl Disk {
    fn new(image: &Path, place: PathBuf) -> Self {
        let last = log().and_then(|log| log.lines().next_back().map(str::to_owned));
        let mounted = Mounted::new("ext4", "loop", image, place.clone());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut sources = mounts.lines().filter_map(|line| line.split_once(' '));
        let is_here = |rest: &str| rest.split(' ').next() == place.to_str();
        let (device, _) = sources.find(|(_, rest)| is_here(rest)).unwrap();
        Self { mounted: Some(mounted), root: place, device: device.to_owned(), last }
    }

    fn unmount(mut self) {
        drop(self.mounted.take());
        let (Some(last), Some(log)) = (&self.last, log()) else { return };
        let since = log.rsplit_once(last.as_str()).map_or(log.as_str(), |(_, since)| since);
        let device = self.device.strip_prefix("/dev/").unwrap();
        let is_complaint = |line: &&str| {
            line.contains("EXT4-fs")
                && line.contains(device)
                && ["error", "warning", "corrupt"].iter().any(|word| line.to_lowercase().contains(word))
        };
        let complaints: Vec<_> = since.lines().filter(is_complaint).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}

/// Reads the kernel's log. Not every host lets a test read it.
fn log() -> Option<String> {
    let done = Command::new("dmesg").output().ok().filter(|done| done.status.success())?;
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Writes files of all kinds, and removes some.
fn use_up(root: &Path, size: u64) {
    let path = |name: &str| root.join(name);
    fs::write(path("file"), vec![3; 100_000]).unwrap();
    fs::hard_link(path("file"), path("link")).unwrap();
    symlink("t".repeat(300), path("symbolic link")).unwrap();
    for (attribute, value) in [("user.short", vec![1; 20]), ("trusted.long", vec![2; 3000])] {
        setxattr(path("file"), attribute, &value, XattrFlags::empty()).unwrap();
    }
    // The directory gets an index.
    fs::create_dir(path("many")).unwrap();
    let name = |number| path(&format!("many/{number:0100}"));
    (0..1000).for_each(|number| fs::write(name(number), "").unwrap());
    (0..1000).step_by(3).for_each(|number| fs::remove_file(name(number)).unwrap());
    (0..100).for_each(|number| fs::create_dir(path(&format!("directory {number}"))).unwrap());
    if size >= GIB {
        let large = File::create(path("larger than a group")).unwrap();
        fallocate(&large, FallocateFlags::empty(), 0, 300 * MIB).unwrap();
        [0, 128, 299].into_iter().for_each(|at| large.write_all_at(&[5; BLOCK], at * MIB).unwrap());
    }
    assert_eq!(attributes(&path("link"))["trusted.long"], [2; 3000]);
    assert_eq!(fs::read_dir(path("many")).unwrap().count(), 666);
}

#[test]
fn empty_disk_of_each_size_mounts_and_stays_clean() {
    needs!(root, ext4);
    let scratch = Scratch::new();
    // The second group of the disk of 128 MiB and 200 KiB is too small, and one of 416 KiB is not.
    let sizes = [
        (SMALLEST, 64),
        (SMALLEST + 513, 64),
        (SMALLEST + 5 * KIB, 64),
        (64 * MIB, 64),
        (127 * MIB, 64),
        (128 * MIB, 64),
        (128 * MIB + 200 * KIB, 64),
        (128 * MIB + 416 * KIB, 80),
        (129 * MIB, 80),
        (512 * MIB, 80),
        (GIB, 100),
        (10 * GIB, 200),
        (17 * GIB, 260),
    ];
    for (size, most_kib) in sizes {
        let image = scratch.path(&format!("{size}"));
        make(&image, size).unwrap();
        assert_eq!(fs::metadata(&image).unwrap().len(), size);
        let held = allocated(&image);
        assert!(held <= most_kib * KIB, "{size}: {held} bytes are allocated");
        assert_clean(&image);
        assert_eq!(told(&image, "Filesystem features:"), FEATURES);
        assert_eq!(told(&image, "Journal features:"), "journal_64bit journal_checksum_v3");
        assert_eq!(told(&image, "Errors behavior:"), "Remount read-only");
        let disk = Disk::new(&image, scratch.path("mounted"));
        let modes = ["", "lost+found", "upper", "work"].map(|name| {
            let found = fs::metadata(disk.root.join(name)).unwrap();
            (found.mode() & 0o7777, found.uid(), found.nlink(), found.mtime())
        });
        let directory = |mode, links| (mode, 0, links, 1_750_000_000);
        let expected = [directory(0o755, 5), directory(0o700, 2), directory(0o755, 2), directory(0o755, 2)];
        assert_eq!(modes, expected);
        use_up(&disk.root.join("upper"), size);
        disk.unmount();
        assert_clean(&image);
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn empty_disk_of_terabytes_mounts_and_stays_clean() {
    needs!(root, ext4);
    let scratch = Scratch::new();
    for (size, most_mib) in [(TIB, 12), (TIB + 129 * MIB, 5), (LARGEST, 26)] {
        // e2fsck reads the groups of 16 TiB for ten seconds: with `scripts/test.sh --full`.
        if size == LARGEST && volt_tests::generations() < 100 {
            continue;
        }
        let image = scratch.path(&format!("{size}"));
        // A file of ext4 with blocks of 4 KiB lacks one of them.
        let tried = [size, size - BLOCK as u64].into_iter().find(|size| match make(&image, *size) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::FileTooLarge => false,
            Err(error) => panic!("{size}: {error}"),
        });
        let Some(size) = tried else {
            skip(&format!("no file here can have {size} bytes"));
            return;
        };
        let held = allocated(&image);
        assert!(held <= most_mib * MIB, "{size}: {held} bytes are allocated");
        assert_clean(&image);
        let copies = if size > TIB { "dir_index sparse_super2" } else { "dir_index" };
        assert_eq!(told(&image, "Filesystem features:"), FEATURES.replace("dir_index", copies));
        let disk = Disk::new(&image, scratch.path("mounted"));
        use_up(&disk.root.join("upper"), size);
        disk.unmount();
        assert_clean(&image);
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn smallest_disk_with_the_most_directories_is_clean() {
    needs!(root, ext4);
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let names: Vec<_> = (0..336).map(|number| format!("{number:03}")).collect();
    ext4(&image, SMALLEST, &names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    assert_clean(&image);
    let disk = Disk::new(&image, scratch.path("mounted"));
    assert_eq!(fs::read_dir(&disk.root).unwrap().count(), 337);
    fs::write(disk.root.join("one more"), "").unwrap();
    disk.unmount();
    assert_clean(&image);
}

#[test]
fn full_disk_stays_clean() {
    needs!(root, ext4);
    let scratch = Scratch::new();
    for (size, content) in [(SMALLEST, 0), (SMALLEST, 5000), (129 * MIB, 1_000_000)] {
        let image = scratch.path("image");
        make(&image, size).unwrap();
        let disk = Disk::new(&image, scratch.path("mounted"));
        let content = vec![6; content];
        let full = (0..).find_map(|number| fs::write(disk.root.join(number.to_string()), &content).err());
        assert_eq!(full.unwrap().kind(), ErrorKind::StorageFull);
        disk.unmount();
        assert_clean(&image);
    }
}

#[test]
fn disk_is_upper_and_work_directory_of_overlay() {
    needs!(root, ext4, overlayfs);
    let scratch = Scratch::new();
    let (image, lower) = (scratch.path("image"), scratch.path("lower"));
    fs::create_dir_all(lower.join("directory/deeper")).unwrap();
    for name in ["changed", "removed", "directory/file"] {
        fs::write(lower.join(name), name).unwrap();
    }
    make(&image, 64 * MIB).unwrap();
    let disk = Disk::new(&image, scratch.path("mounted"));
    let [upper, work] = ["upper", "work"].map(|name| disk.root.join(name));
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let overlay = Mounted::new("overlay", &options, Path::new("overlay"), scratch.path("merged"));
    let path = |name: &str| overlay.0.join(name);
    assert!(!fs::exists(path("lost+found")).unwrap());
    fs::write(path("changed"), "otherwise").unwrap();
    fs::remove_file(path("removed")).unwrap();
    fs::remove_dir_all(path("directory")).unwrap();
    fs::create_dir(path("directory")).unwrap();
    setxattr(path("changed"), "user.name", b"value", XattrFlags::empty()).unwrap();
    fs::rename(path("changed"), path("directory/renamed")).unwrap();
    assert_eq!(fs::read_dir(&overlay.0).unwrap().count(), 1);
    assert_eq!(fs::read(path("directory/renamed")).unwrap(), b"otherwise");
    drop(overlay);
    assert_eq!(attributes(&upper.join("directory"))["trusted.overlay.opaque"], b"y");
    assert_eq!(attributes(&upper.join("directory/renamed"))["user.name"], b"value");
    disk.unmount();
    assert_clean(&image);
}

#[test]
fn journal_of_a_disk_that_lost_power_is_replayed() {
    needs!(root, ext4);
    let scratch = Scratch::new();
    let [image, copy] = ["image", "copy"].map(|name| scratch.path(name));
    make(&image, 64 * MIB).unwrap();
    let disk = Disk::new(&image, scratch.path("mounted"));
    fs::write(disk.root.join("upper/file"), "content").unwrap();
    File::open(disk.root.join("upper/file")).unwrap().sync_all().unwrap();
    // Metadata are in the journal alone until Linux writes them back.
    fs::copy(&image, &copy).unwrap();
    disk.unmount();
    assert_clean(&image);
    assert!(told(&copy, "Filesystem features:").contains("needs_recovery"));
    let disk = Disk::new(&copy, scratch.path("mounted"));
    assert_eq!(fs::read(disk.root.join("upper/file")).unwrap(), b"content");
    disk.unmount();
    assert_clean(&copy);
}

#[test]
fn mounted_disk_grows() {
    needs!(root, ext4, online_growth);
    let scratch = Scratch::new();
    let image = scratch.path("image");
    make(&image, 200 * MIB).unwrap();
    let disk = Disk::new(&image, scratch.path("mounted"));
    fs::write(disk.root.join("file"), "content").unwrap();
    File::options().write(true).open(&image).unwrap().set_len(20 * GIB).unwrap();
    run("losetup", &["--set-capacity", &disk.device]);
    run("resize2fs", &[&disk.device]);
    use_up(&disk.root.join("upper"), 20 * GIB);
    disk.unmount();
    assert_eq!(told(&image, "Block count:"), (20 * GIB / BLOCK as u64).to_string());
    assert_clean(&image);
}
