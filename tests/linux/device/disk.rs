//! Disks over files and block devices are written, checked, discarded and grown. Clones have their own
//! layers.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use volt_tests::host::LoopDevice;
use volt_tests::{Boot, Scratch, needs, wait_until};

use crate::device::images::{blank, ext4};

#[test]
fn file_system_is_written_checked_and_discarded_with_either_engine() {
    needs!(linux);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let image = ext4(&scratch, "image", 32);
        let words = format!("path={},engine={engine}", image.display());
        let mut guest = Boot::linux().device(["--disk".to_owned(), words]).start();
        guest.wait_until_ready();
        guest.order("mount /dev/vda /mnt ext4");
        guest.order("put /mnt/file 4096 7");
        guest.order("verify /mnt/file 4096 7");
        guest.order("umount /mnt");
        // Flushed data is in the file.
        let blocks = std::fs::metadata(&image).unwrap().blocks();
        assert!(blocks >= 4096 * 2, "{engine}: {blocks}");
        guest.order("discard /dev/vda");
        assert!(std::fs::metadata(&image).unwrap().blocks() < blocks / 4, "{engine}");
        guest.order("put /dev/vda 1024 8");
        guest.order("verify /dev/vda 1024 8");
        // The disk grows while the guest runs.
        File::options().write(true).open(&image).unwrap().set_len(48 << 20).unwrap();
        let change = format!(r#"{{"drive_id":"disk0","path_on_host":"{}"}}"#, image.display());
        assert_eq!(guest.ask("PATCH", "/drives/disk0", &change).0, 204);
        wait_until("the guest sees the disk's new size", || {
            guest.order("size /dev/vda") == [format!("size {}", 48 << 20)]
        });
        // Another file takes its place.
        let other = blank(&scratch, &format!("other-{engine}"), 40);
        let change = format!(r#"{{"drive_id":"disk0","path_on_host":"{}"}}"#, other.display());
        assert_eq!(guest.ask("PATCH", "/drives/disk0", &change).0, 204);
        wait_until("the guest sees the size of the other file", || {
            guest.order("size /dev/vda") == [format!("size {}", 40 << 20)]
        });
    }
}

#[test]
fn block_device_of_the_host_serves_as_disk() {
    needs!(linux, loop_device);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let file = blank(&scratch, "file", 24);
        let device = LoopDevice::over(&file);
        let words = format!("path={},engine={engine}", device.path());
        let mut guest = Boot::linux().device(["--disk", &words]).start();
        guest.wait_until_ready();
        assert_eq!(guest.order("size /dev/vda"), [format!("size {}", 24 << 20)]);
        guest.order("put /dev/vda 8192 3");
        guest.order("verify /dev/vda 8192 3");
        // Flushed data is on the device and in the file under it.
        let written = |path: &str| {
            let mut bytes = vec![0; 8 << 20];
            File::open(path).unwrap().read_exact(&mut bytes).unwrap();
            bytes
        };
        let found = written(file.to_str().unwrap());
        assert!(found == written(device.path()), "{engine}: the file differs from the device");
        let zeros = found.chunks(4096).filter(|page| page.iter().all(|byte| *byte == 0)).count();
        assert_eq!(zeros, 0, "{engine}: pages that were not written");
        guest.order("discard /dev/vda");
        assert!(written(device.path()).iter().all(|byte| *byte == 0), "{engine}");
    }
}

#[test]
fn clones_of_a_busy_disk_write_to_their_own_layers() {
    needs!(linux);
    let scratch = Scratch::new();
    let (base, layer) = (ext4(&scratch, "base", 32), scratch.fresh("layer"));
    let before = std::fs::read(&base).unwrap();
    let words = format!("path={},layer={},id=root", base.display(), layer.display());
    let mut guest = Boot::linux().vcpus(2).device(["--disk".to_owned(), words]).start();
    guest.wait_until_ready();
    guest.order("mount /dev/vda /mnt ext4");
    guest.order("churn /mnt/busy 256");
    guest.next_number("churn");
    let snapshot = guest.snapshot();
    drop(guest);
    let mut clones = [snapshot.restore(), snapshot.restore()];
    for (seed, clone) in (1..).zip(&mut clones) {
        clone.order(&format!("put /mnt/own 512 {seed}"));
    }
    for (seed, clone) in (1..).zip(&mut clones) {
        clone.order(&format!("verify /mnt/own 512 {seed}"));
        clone.next_number("churn");
        clone.next_number("churn");
        assert!(!clone.output().contains("corrupt"), "{}", clone.output());
    }
    assert!(std::fs::read(&base).unwrap() == before, "the base was written to");
}
