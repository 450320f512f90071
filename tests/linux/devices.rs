//! Linux finds its virtio devices, both ways, and goes on with them after a restore.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use volt_tests::{Boot, Guest, Scratch, needs, wait_until};

#[test]
fn virtio_devices_are_found_through_acpi_and_through_the_command_line() {
    needs!(linux);
    for on_cmdline in [false, true] {
        let mut boot = Boot::linux().device(["--rng"]);
        if on_cmdline {
            // For a kernel without ACPI: one that has it, hardware-reduced, numbers its interrupts as it likes.
            boot = boot.device(["--devices-on-cmdline"]).and("acpi=off");
        }
        let mut guest = boot.start();
        guest.wait_until_ready();
        let first = guest.order("random");
        assert!(first[0].starts_with("random virtio_rng.0 "), "{first:?}");
        assert_ne!(guest.order("random"), first);
        // Told of it once, the guest has it once.
        assert!(
            guest
                .type_in("read /sys/bus/virtio/devices/virtio1/device\n")
                .next_line("error read")
                .contains("No such")
        );
    }
}

#[test]
fn a_device_goes_on_in_clones() {
    needs!(linux);
    let mut guest = Boot::linux().vcpus(2).device(["--rng"]).start();
    guest.wait_until_ready();
    guest.order("random");
    let snapshot = guest.snapshot();
    let mut drawn = Vec::new();
    for guest in [&mut guest, &mut snapshot.restore(), &mut snapshot.restore()] {
        // Linux draws ahead: what it had in memory already the clones have in common.
        for _ in 0..40 {
            guest.order("random");
        }
        drawn.push(guest.order("random"));
    }
    assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn[0] != drawn[2], "{drawn:?}");
}

/// A disk image of so many MiB with an ext4 file system, if the host has what makes one.
fn image(scratch: &Scratch, name: &str, mib: u64) -> PathBuf {
    let path = scratch.fresh(name);
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    let made = Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&path).output().expect("run mke2fs");
    assert!(made.status.success(), "{made:?}");
    path
}

#[test]
fn a_file_system_is_written_checked_and_discarded_with_either_engine() {
    needs!(linux);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let image = image(&scratch, "image", 32);
        let words = format!("path={},engine={engine}", image.display());
        let mut guest = Boot::linux().device(["--disk".to_owned(), words]).start();
        guest.wait_until_ready();
        guest.order("mount /dev/vda /mnt ext4");
        guest.order("put /mnt/file 4096 7");
        guest.order("verify /mnt/file 4096 7");
        guest.order("umount /mnt");
        // What a guest flushed is in the file, for anyone to see.
        let blocks = std::fs::metadata(&image).unwrap().blocks();
        assert!(blocks >= 4096 * 2, "{engine}: {blocks}");
        guest.order("discard /dev/vda");
        assert!(std::fs::metadata(&image).unwrap().blocks() < blocks / 4, "{engine}");
        guest.order("put /dev/vda 1024 8");
        guest.order("verify /dev/vda 1024 8");
        // A disk that grows while the guest runs.
        std::fs::File::options().write(true).open(&image).unwrap().set_len(48 << 20).unwrap();
        let change = format!(r#"{{"drive_id":"disk0","path_on_host":"{}"}}"#, image.display());
        assert_eq!(guest.ask("PATCH", "/drives/disk0", &change).0, 204);
        wait_until("the guest sees the disk's new size", || {
            guest.order("size /dev/vda") == [format!("size {}", 48 << 20)]
        });
    }
}

#[test]
fn clones_of_a_busy_disk_go_on_each_on_a_layer_of_its_own() {
    needs!(linux);
    let scratch = Scratch::new();
    let (base, layer) = (image(&scratch, "base", 32), scratch.fresh("layer"));
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

#[test]
fn streams_go_both_ways_over_vsock_and_connections_are_reset_by_a_restore() {
    needs!(linux);
    let scratch = Scratch::new();
    let (socket, other) = (scratch.fresh("vsock"), scratch.fresh("other"));
    let words = format!("cid=5,socket={}", socket.display());
    let mut guest = Boot::linux().device(["--vsock".to_owned(), words]).start();
    guest.wait_until_ready();
    guest.order("vsock-echo 1000");
    let streams: Vec<_> = (0..20).map(|_| vsock_connect(&socket, 1000)).collect();
    for (at, stream) in streams.iter().enumerate() {
        echoes(stream, &vec![at as u8; 100_000]);
    }
    let listener = UnixListener::bind(format!("{}_2000", socket.display())).unwrap();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
    });
    assert_eq!(guest.order("vsock-send 2000 512"), [format!("came back {}", 512 << 10)]);
    echo.join().unwrap();

    let snapshot = guest.snapshot();
    echoes(&streams[0], b"the original goes on");
    let mut clone = snapshot.restore_as(&["--vsock", &format!("socket={}", other.display())]);
    clone.order("echo there");
    // What was connected is not any more, what listens still does, for the clone at its own socket.
    echoes(&vsock_connect(&other, 1000), b"anyone there?");
    drop(guest);
    echoes(&vsock_connect(&other, 1000), b"still?");
}

fn vsock_connect(socket: &Path, port: u32) -> UnixStream {
    let mut found = None;
    wait_until("the guest listens", || {
        let Ok(mut stream) = UnixStream::connect(socket) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        writeln!(stream, "CONNECT {port}").unwrap();
        let mut answer = Vec::new();
        while answer.last() != Some(&b'\n') {
            let mut byte = [0];
            if !matches!(stream.read(&mut byte), Ok(1)) {
                return false;
            }
            answer.push(byte[0]);
        }
        assert!(answer.starts_with(b"OK "), "{answer:?}");
        found = Some(stream);
        true
    });
    found.unwrap()
}

fn echoes(mut stream: &UnixStream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        let mut sender = stream;
        scope.spawn(move || sender.write_all(bytes).unwrap());
        let mut found = vec![0; bytes.len()];
        stream.read_exact(&mut found).unwrap();
        assert!(found == bytes, "other bytes came back");
    });
}

#[test]
fn tcp_goes_both_ways_over_a_tap_with_offloads_and_without() {
    needs!(linux, tap);
    for (number, offload) in [(1, "on"), (2, "off")] {
        let tap = format!("volt{}t{number}", std::process::id() % 1000);
        let mut guest =
            Boot::linux().device(["--net".to_owned(), format!("tap={tap},offload={offload}")]).start();
        guest.wait_until_ready();
        for words in [format!("addr add 10.77.{number}.1/24 dev {tap}"), format!("link set {tap} up")] {
            let done = Command::new("ip").args(words.split(' ')).output().expect("run ip");
            assert!(done.status.success(), "ip {words}: {done:?}");
        }
        guest.order(&format!("net eth0 10.77.{number}.2/24"));
        guest.order("tcp-echo 80");
        let mut stream = None;
        wait_until("the guest is reached over TCP", || {
            let address = ([10, 77, number, 2], 80).into();
            stream = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok();
            stream.is_some()
        });
        let mut stream = stream.unwrap();
        let sent: Vec<u8> = (0..2_000_000_u32).map(|at| (at / 3) as u8).collect();
        let mut found = vec![0; sent.len()];
        std::thread::scope(|scope| {
            let mut sender = stream.try_clone().unwrap();
            let sent = &sent;
            scope.spawn(move || sender.write_all(sent).unwrap());
            stream.read_exact(&mut found).unwrap();
        });
        assert!(found == sent, "offload {offload}: other bytes came back");
        let listener = std::net::TcpListener::bind(format!("10.77.{number}.1:90")).unwrap();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
        });
        let came = guest.order(&format!("tcp-send 10.77.{number}.1:90 512"));
        assert_eq!(came, [format!("came back {}", 512 << 10)]);
        echo.join().unwrap();
    }
}

#[test]
fn a_balloon_takes_memory_and_gives_it_back() {
    needs!(linux);
    let mut guest = Boot::linux().device(["--balloon", "reporting,statistics=1,deflate-on-oom"]).start();
    guest.wait_until_ready();
    guest.order("fill 100");
    let full = guest.resident_kib();
    assert_eq!(guest.ask("PATCH", "/balloon", r#"{"amount_mib":64}"#).0, 204);
    let number = |guest: &Guest, name: &str| -> u64 {
        let (status, answer) = guest.ask("GET", "/balloon/statistics", "");
        assert_eq!(status, 200, "{answer}");
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        answer[name].as_u64().unwrap_or(0)
    };
    wait_until("the balloon is full", || number(&guest, "actual_mib") == 64);
    wait_until("the guest tells of its memory", || number(&guest, "total_memory") > 0);
    let snapshot = guest.snapshot();
    assert_eq!(guest.ask("PATCH", "/balloon", r#"{"amount_mib":0}"#).0, 204);
    wait_until("the balloon is empty", || number(&guest, "actual_mib") == 0);
    guest.order("check");
    assert!(!guest.output().contains("corrupt"));
    // A restored guest keeps its balloon as it was.
    let clone = snapshot.restore();
    wait_until("the clone's API is there", || number(&clone, "actual_mib") == 64);
    assert_eq!(number(&clone, "target_mib"), 64);
    assert!(full > 100 << 10, "{full}");
}

/// A guest writes and verifies on its disk, and streams go over vsock and TCP, while it is snapshotted again and again.
fn stay_busy(boot: Boot<'_>, generations: usize) {
    let scratch = Scratch::new();
    let tap = format!("volt{}b{generations}", std::process::id() % 1000);
    let (base, layer) = (image(&scratch, "disk", 32), scratch.fresh("layer"));
    let vsock = scratch.fresh("vsock");
    let mut guest = boot
        .device(["--disk", &format!("path={},layer={},id=root", base.display(), layer.display())])
        .device(["--net", &format!("tap={tap}")])
        .device(["--vsock", &format!("cid=3,socket={}", vsock.display())])
        .device(["--rng", "--balloon", "reporting"])
        .start();
    guest.wait_until_ready();
    let address = [10, 78, generations as u8, 2];
    let host = format!("10.78.{generations}.1/24");
    guest.order("mount /dev/vda /mnt ext4");
    guest.order("churn /mnt/busy 128");
    guest.order("vsock-echo 1000");
    guest.order(&format!("net eth0 10.78.{generations}.2/24"));
    guest.order("tcp-echo 80");
    guest.order("fill 8");
    guest.order("count");
    for generation in 0..generations {
        // The tap goes with its VM, and comes back with the next one, without an address.
        for words in [format!("addr add {host} dev {tap}"), format!("link set {tap} up")] {
            wait_until(&format!("ip {words}"), || {
                Command::new("ip").args(words.split(' ')).output().expect("run ip").status.success()
            });
        }
        let bytes = vec![generation as u8; 200_000];
        echoes(&vsock_connect(&vsock, 1000), &bytes);
        let mut stream = None;
        wait_until("the guest is reached over TCP", || {
            stream = std::net::TcpStream::connect_timeout(&(address, 80).into(), Duration::from_secs(5)).ok();
            stream.is_some()
        });
        let mut stream = stream.unwrap();
        stream.write_all(&bytes[..10_000]).unwrap();
        let mut found = vec![0; 10_000];
        stream.read_exact(&mut found).unwrap();
        assert!(found == bytes[..10_000], "generation {generation}: other bytes came back");
        guest.next_number("churn");
        // In the middle of whatever it does.
        let snapshot = guest.snapshot();
        assert!(!guest.output().contains("corrupt"), "generation {generation}: {}", guest.output());
        drop(guest);
        guest = snapshot.restore();
    }
    guest.next_number("churn");
    guest.next_number("churn");
    guest.order("random");
    guest.order("check");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}

#[test]
fn devices_stay_busy_through_ten_generations_of_snapshots() {
    needs!(linux, tap);
    stay_busy(Boot::linux(), 10);
}

#[test]
fn devices_of_a_guest_with_two_vcpus_and_memory_above_3_gib_stay_busy_too() {
    needs!(linux, tap);
    stay_busy(Boot::linux().vcpus(2).memory("3500M"), 3);
}
