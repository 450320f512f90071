//! Snapshots of a guest whose devices are all busy: it writes and verifies its disk and streams over TCP and
//! vsock through all generations. No byte differs and no request hangs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use volt_tests::streams::bytes_of;
use volt_tests::vsock::try_connect;
use volt_tests::{Boot, Guest, Network, Scratch, generations, needs, wait_until};

use crate::device::images::ext4;

const STEP: usize = 8 << 10;
/// Steps under way at any time.
const AHEAD: usize = 4;
/// A pause between two steps, so the stream does not use all of an emulated processor.
const BREATH: Duration = Duration::from_millis(5);

/// A stream of bytes that the guest echoes.
#[derive(Default)]
struct Flow {
    connections: AtomicUsize,
    came_back: AtomicUsize,
    enough: AtomicBool,
}

impl Flow {
    /// Keeps some distinct steps under way and compares the echo, so a pause always finds bytes under way in
    /// both directions. Ends on request or with the stream.
    fn go_round<S>(&self, stream: &S) -> std::io::Result<()>
    where
        for<'a> &'a S: Read + Write,
    {
        let (mut to, mut from) = (stream, stream);
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        let step = |number: usize| bytes_of(connection * 7919 + number, STEP);
        (0..AHEAD).try_for_each(|number| to.write_all(&step(number)))?;
        let mut found = vec![0; STEP];
        for number in 0.. {
            from.read_exact(&mut found)?;
            assert!(found == step(number), "connection {connection}, step {number}: other bytes came back");
            self.came_back.fetch_add(1, Ordering::Relaxed);
            if self.enough.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(BREATH);
            to.write_all(&step(number + AHEAD))?;
        }
        Ok(())
    }

    /// Waits until bytes sent from now on have come back.
    fn goes_on(&self, name: &str) {
        let before = self.came_back.load(Ordering::Relaxed);
        wait_until(&format!("{name} goes on"), || {
            self.came_back.load(Ordering::Relaxed) > before + 2 * AHEAD
        });
    }

    /// One connection outlives all generations.
    fn over_tcp(&self, stream: &TcpStream) {
        self.go_round(stream).expect("a TCP connection that lasts");
    }

    /// A restore resets the connection, and a new one follows.
    fn over_vsock(&self, socket: &Path) {
        while !self.enough.load(Ordering::Relaxed) {
            if let Some(stream) = try_connect(socket, 1000) {
                let _ = self.go_round(&stream);
            }
            std::thread::sleep(4 * BREATH);
        }
    }
}

/// Ends the streams, even if the test panics. Otherwise their threads would never end.
struct Enough<'a>([&'a Flow; 2]);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|flow| flow.enough.store(true, Ordering::Relaxed));
    }
}

/// `packing` and `restoring` are options of the snapshots and the restores.
fn stay_busy(boot: Boot<'_>, engine: &str, generations: usize, (packing, restoring): (&[&str], &[&str])) {
    let (scratch, network) = (Scratch::new(), Network::new());
    network.add_tap("tap0", "10.78.0.1/24");
    let (base, layer) = (ext4(&scratch, "disk", 32), scratch.fresh("layer"));
    let socket = scratch.fresh("vsock");
    let mut guest = boot
        .device([
            "--disk",
            &format!("path={},layer={},id=root,engine={engine}", base.display(), layer.display()),
        ])
        .device(["--net", "tap=tap0", "--rng", "--balloon", "reporting"])
        .device(["--vsock", &format!("cid=3,socket={}", socket.display())])
        .inside(network.namespace())
        .start();
    guest.wait_until_ready();
    for order in [
        "mount /dev/vda /mnt ext4",
        "net eth0 10.78.0.2/24",
        "tcp-echo 80",
        "vsock-echo 1000",
        "fill 8",
        "count",
        "churn /mnt/busy 128",
    ] {
        guest.order(order);
    }
    let (tcp, vsock) = (Flow::default(), Flow::default());
    let stream = network.connect("10.78.0.2:80");
    let mut guest = scope(|scope| {
        let _enough = Enough([&tcp, &vsock]);
        scope.spawn(|| tcp.over_tcp(&stream));
        scope.spawn(|| vsock.over_vsock(&socket));
        go_on(&mut guest, &tcp, &vsock);
        for generation in 0..generations {
            // The pause may come at any moment. The original must not run on, because the clone would not
            // know which bytes it has acknowledged.
            let start = Instant::now();
            guest.pause();
            let snapshot = guest.snapshot_as(packing);
            assert!(!guest.output().contains("corrupt"), "generation {generation}: {}", guest.output());
            drop(guest);
            guest = snapshot.restore_inside(network.namespace(), restoring);
            let stood_still = start.elapsed();
            go_on(&mut guest, &tcp, &vsock);
            println!(
                "generation {generation}: stood still for {stood_still:?}, went on in {:?}",
                start.elapsed()
            );
            snapshot.remove();
        }
        guest
    });
    guest.order("check");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
    assert_eq!(tcp.connections.into_inner(), 1);
    assert!(vsock.connections.into_inner() > generations, "a connection over vsock outlived a restore");
}

/// Waits until each device has made progress.
fn go_on(guest: &mut Guest, tcp: &Flow, vsock: &Flow) {
    guest.next_number("count");
    guest.order("random");
    vsock.goes_on("vsock");
    tcp.goes_on("TCP");
    guest.next_number("churn");
    guest.next_number("churn");
}

#[test]
fn devices_stay_busy_through_generations_of_snapshots() {
    needs!(linux, network);
    stay_busy(Boot::linux(), "sync", generations(), (&[], &[]));
}

#[test]
fn devices_stay_busy_with_two_vcpus_and_memory_above_3_gib() {
    needs!(linux, network);
    stay_busy(Boot::linux().vcpus(2).memory("3500M"), "io_uring", 3, (&[], &[]));
}

#[test]
fn devices_stay_busy_over_memory_unpacked_on_touch() {
    needs!(linux, network);
    stay_busy(Boot::linux().vcpus(2), "io_uring", 3, (&["--compress", "lz4"], &[]));
    let scratch = Scratch::new();
    let pagers = scratch.path("pagers");
    let shared = ["--pager", "shared", "--pager-dir", pagers.to_str().unwrap()];
    stay_busy(Boot::linux(), "sync", 3, (&["--compress", "zstd"], &shared));
}
