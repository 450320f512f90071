//! TCP both ways over taps and passt. Each test has its own network namespace.

use std::thread::scope;

use volt_tests::streams::{await_ready, bytes_of, echoes, send_back};
use volt_tests::{Boot, Guest, Network, limited, needs};
use volt_vmm::config::user_network::IPV4;

const STREAM: usize = 500_000;

/// Lets the guest connect to `to` in `network`, send, and compare the echo.
fn guest_connects(guest: &mut Guest, network: &Network, to: &str) {
    let listener = network.listen(to);
    scope(|scope| {
        let echo = scope.spawn(|| {
            await_ready("the guest connects", &listener);
            send_back(&listener.accept().unwrap().0)
        });
        assert_eq!(guest.order(&format!("tcp-send {to} 512")), [format!("came back {}", 512 << 10)]);
        assert_eq!(limited("the stream ends", || echo.join()).unwrap(), 512 << 10);
    });
}

#[test]
fn tcp_goes_both_ways_over_a_tap_with_and_without_offloads() {
    needs!(linux, network);
    for offload in ["on", "off"] {
        let network = Network::new();
        let words = format!("tap=tap0,offload={offload}");
        // The VM makes the tap.
        let mut guest = Boot::linux().device(["--net", &words]).inside(network.namespace()).start();
        guest.wait_until_ready();
        network.configure("tap0", "10.77.0.1/24");
        guest.order("net eth0 10.77.0.2/24");
        guest.order("tcp-echo 80");
        echoes(&network.connect("10.77.0.2:80"), &bytes_of(1, STREAM));
        guest_connects(&mut guest, &network, "10.77.0.1:90");
    }
}

#[test]
fn clones_with_equal_addresses_run_in_separate_networks() {
    needs!(linux, network);
    let networks = [(); 2].map(|()| Network::new());
    for network in &networks {
        network.add_tap("tap0", "10.77.0.1/24");
    }
    let boot = Boot::linux().device(["--net", "tap=tap0"]);
    let mut guest = boot.inside(networks[0].namespace()).start();
    guest.wait_until_ready();
    guest.order("net eth0 10.77.0.2/24");
    guest.order("tcp-echo 80");
    echoes(&networks[0].connect("10.77.0.2:80"), b"the original");
    let snapshot = guest.snapshot();
    drop(guest);
    let mut clones = networks.each_ref().map(|network| snapshot.restore_inside(network.namespace(), &[]));
    // Both clones use the same addresses at once.
    let streams = networks.each_ref().map(|network| network.connect("10.77.0.2:80"));
    scope(|scope| {
        for (number, stream) in streams.iter().enumerate() {
            scope.spawn(move || echoes(stream, &bytes_of(number, STREAM)));
        }
    });
    for (clone, network) in clones.iter_mut().zip(&networks) {
        guest_connects(clone, network, "10.77.0.1:90");
    }
}

#[test]
fn tcp_goes_both_ways_over_passt() {
    needs!(linux, network, passt);
    let network = Network::with_a_way_out();
    let boot = Boot::linux().device(["--net", "passt,forward=8080:80"]);
    let mut guest = boot.inside(network.namespace()).start();
    guest.wait_until_ready();
    guest.order(&format!("net eth0 {}/{} {}", IPV4.address, IPV4.prefix, IPV4.gateway));
    guest.order("tcp-echo 80");
    echoes(&network.connect("127.0.0.1:8080"), &bytes_of(1, STREAM));
    guest_connects(&mut guest, &network, "203.0.113.1:90");
    // A clone has its own passt and another port on the host.
    let snapshot = guest.snapshot();
    let mut clone = snapshot.restore_inside(network.namespace(), &["--net", "id=eth0,passt,forward=8081:80"]);
    clone.order("echo there");
    for port in [8080, 8081] {
        echoes(&network.connect(&format!("127.0.0.1:{port}")), &bytes_of(port, STREAM));
    }
    guest_connects(&mut clone, &network, "203.0.113.1:90");
}
