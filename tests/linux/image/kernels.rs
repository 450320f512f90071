//! A kernel whose file systems and drivers are modules.

use std::fs;
use std::path::PathBuf;

use volt_job::job::{Address, MODULES, Network, Upper};
use volt_job::{Job, ended};
use volt_tests::scratch::list;
use volt_tests::streams::await_ready;
use volt_tests::vsock::listen;
use volt_tests::{Boot, Scratch, needs};

use super::{boot_with, end, job, script, upper_disk};

/// Describes the boot of a job on the stock kernel, with its modules and an upper disk.
fn stock<'a>(scratch: &Scratch, mut job: Job) -> Boot<'a> {
    let (_, words) = upper_disk(scratch);
    let directory = PathBuf::from(std::env::var_os("VOLT_STOCK_MODULES").unwrap());
    job.root.upper = Upper::Disk("upper".to_owned());
    job.modules = list(&directory);
    let read = |name: &String| (format!("{MODULES}/{name}"), fs::read(directory.join(name)).unwrap());
    let modules: Vec<_> = job.modules.iter().map(read).collect();
    let boot = Boot::linux_of("VOLT_STOCK_KERNEL").memory("512M");
    boot_with(boot, scratch, &job, &modules).device(words)
}

#[test]
fn stock_kernel_runs_an_image_with_modules_of_the_initramfs() {
    needs!(stock_kernel, agent);
    let scratch = Scratch::new();
    let socket = scratch.fresh("vsock");
    let listener = listen(&socket, ended::PORT);
    let words = ["--vsock".to_owned(), format!("cid=5,socket={}", socket.display())];
    let text = "cat /replaced; echo new >/replaced; cat /replaced; exit 7";
    let mut guest = stock(&scratch, job(script(text))).device(words).start();
    await_ready("the guest reports", &listener);
    drop(listener.accept().unwrap());
    let (ended, lines) = end(&mut guest);
    assert_eq!(ended, "exit 7");
    for line in ["of the higher layer", "new"] {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:#?}");
    }
}

#[test]
fn interface_of_a_module_is_configured_as_far_as_the_kernel_allows() {
    needs!(stock_kernel, agent, network);
    let scratch = Scratch::new();
    let network = volt_tests::Network::with_a_way_out();
    let text = "busybox ip -o addr show dev eth0 scope global; busybox ip -6 route show default";
    let address = |text: &str, prefix| Address { address: text.parse().unwrap(), prefix };
    let job = Job {
        network: Some(Network {
            mac: "02:00:00:00:00:01".to_owned(),
            mtu: None,
            addresses: vec![address("10.1.2.3", 24), address("fd00::3", 64)],
            gateways: vec!["10.9.9.9".parse().unwrap(), "fd00::1".parse().unwrap()],
        }),
        ..job(script(text))
    };
    let boot = stock(&scratch, job).device(["--net", "user,mac=02:00:00:00:00:01"]);
    let (ended, lines) = end(&mut boot.inside(network.namespace()).start());
    assert_eq!(ended, "exit 0", "{lines:#?}");
    for part in [
        "volt-init: cannot add the gateway 10.9.9.9 of eth0: ",
        "inet 10.1.2.3/24 ",
        "inet6 fd00::3/64 ",
        "default via fd00::1 dev eth0 ",
    ] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:#?}");
    }
}

#[test]
fn ctrl_alt_del_stops_the_main_process_under_a_kernel_that_drives_the_keyboard() {
    needs!(stock_kernel, agent);
    let text = "trap 'exit 5' TERM; trap 'exit 6' INT; echo waiting; while :; do sleep 0.1; done";
    let mut guest = stock(&Scratch::new(), job(script(text))).start();
    guest.wait_for("waiting");
    guest.press_power_button();
    assert_eq!(end(&mut guest).0, "exit 5");
}
