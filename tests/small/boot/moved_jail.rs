//! A snapshot that was taken in the jail of one user is loaded in the jail of another, by Firecracker's
//! requests alone.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use volt_tests::jails::{GROUP, USER};
use volt_tests::{Guest, Jails, OwnedTap, limited, needs, rest, vsock, wait_until};

/// The user of the second jail.
const OTHER: u32 = 61_236;
const SOCKET: &str = "/run/api.sock";
/// Files of the snapshot and its VM, by their paths in both jails.
const FILES: [&str; 3] = ["/state", "/memory", "/disk.img"];

fn put(jails: &Jails, path: &str, body: &serde_json::Value) {
    let answer = rest::ask(&jails.path(SOCKET), "PUT", path, &body.to_string());
    assert_eq!(answer, (204, String::new()), "{path} {body}");
}

/// Sends bytes through the guest.
fn meets_guest(socket: &Path) {
    let mut stream = vsock::connect(socket, 1000);
    let mut answer = [0; 5];
    limited("the guest's echo", || {
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut answer).unwrap();
    });
    assert_eq!(&answer, b"hello");
}

/// Boots a VM in a jail, takes its snapshot in two files and one in a directory, and ends it.
fn take(jails: &Jails, tap: &OwnedTap) {
    File::create(jails.path("/disk.img")).unwrap().set_len(1 << 20).unwrap();
    jails.give("/disk.img");
    let daemon = jails.start_daemon(&["--daemonize"], &["--api-sock", SOCKET]);
    put(jails, "/boot-source", &json!({"kernel_image_path": "/guest.elf", "boot_args": "vsock"}));
    put(jails, "/machine-config", &json!({"vcpu_count": 1, "mem_size_mib": 64}));
    let drive = json!({"drive_id": "disk", "path_on_host": "/disk.img", "is_root_device": false});
    put(jails, "/drives/disk", &drive);
    put(jails, "/network-interfaces/eth0", &json!({"iface_id": "eth0", "host_dev_name": tap.name()}));
    put(jails, "/vsock", &json!({"guest_cid": 5, "uds_path": "/run/vsock"}));
    put(jails, "/actions", &json!({"action_type": "InstanceStart"}));
    meets_guest(&jails.path("/run/vsock"));
    let paused = rest::ask(&jails.path(SOCKET), "PATCH", "/vm", r#"{"state":"Paused"}"#);
    assert_eq!(paused, (204, String::new()));
    put(jails, "/snapshot/create", &json!({"snapshot_path": "/run/directory"}));
    put(jails, "/snapshot/create", &json!({"snapshot_path": "/run/state", "mem_file_path": "/run/memory"}));
    for name in ["state", "memory"] {
        fs::rename(jails.path(&format!("/run/{name}")), jails.path(&format!("/{name}"))).unwrap();
    }
    drop(daemon);
}

/// Copies files of one jail into another and gives them to its user.
fn carry(from: &Jails, to: &Jails, path: &str) {
    let copied = Command::new("cp").arg("-r").arg(from.path(path)).arg(to.path(path)).status();
    assert!(copied.unwrap().success());
    to.give(path);
}

fn load(jails: &Jails, body: &serde_json::Value) -> (u16, String) {
    rest::ask(&jails.path(SOCKET), "PUT", "/snapshot/load", &body.to_string())
}

#[test]
fn snapshot_of_a_jail_loads_in_that_of_another_user() {
    needs!(kvm, root, network);
    let (first, second, tap) = (Jails::new(), Jails::of(OTHER, GROUP), OwnedTap::new("two", USER));
    take(&first, &tap);
    FILES.iter().for_each(|path| carry(&first, &second, path));
    fs::create_dir(second.path("/run")).unwrap();
    second.give("/run");
    carry(&first, &second, "/run/directory");
    tap.give_to(OTHER);

    let daemon = second.start_daemon(&["--daemonize"], &["--api-sock", SOCKET]);
    // The jailer's process has ended before the daemon became this user.
    assert_eq!(rest::ask(&second.path(SOCKET), "GET", "/", "").0, 200);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    assert!(status.contains(&format!("Uid:\t{OTHER}\t")), "{status}");
    // Only Firecracker's form of a snapshot says that its files were put there for this load.
    let (code, answer) = load(&second, &json!({"snapshot_path": "/run/directory"}));
    assert!(code == 400 && answer.contains("which is not granted"), "{code} {answer}");
    let memory = json!({"backend_type": "File", "backend_path": "/memory"});
    let loaded = load(&second, &json!({"snapshot_path": "/state", "mem_backend": memory, "resume_vm": true}));
    assert_eq!(loaded, (204, String::new()));
    meets_guest(&second.path("/run/vsock"));
    let answer = rest::ask(&second.path(SOCKET), "GET", "/", "");
    assert!(answer.1.contains(r#""state":"Running""#), "{answer:?}");
    let pid = daemon.pid();
    let has = |name: &str| {
        let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        links.filter_map(|link| fs::read_link(link.path()).ok()).any(|target| target.ends_with(name))
    };
    assert!(has("disk.img") && has("tun"), "it has its own disk and tap");
    drop(daemon);
    wait_until("the process ends", || !Path::new(&format!("/proc/{pid}")).exists());
}

/// A process with all capabilities may use every tap of the host.
#[test]
fn jail_of_root_grants_no_tap() {
    needs!(kvm, root, network);
    let (first, second, tap) = (Jails::new(), Jails::of(0, 0), OwnedTap::new("root", USER));
    take(&first, &tap);
    FILES.iter().for_each(|path| carry(&first, &second, path));
    fs::create_dir(second.path("/run")).unwrap();
    let _daemon = second.start_daemon(&["--daemonize"], &["--api-sock", SOCKET]);
    let memory = json!({"backend_type": "File", "backend_path": "/memory"});
    let (code, answer) = load(&second, &json!({"snapshot_path": "/state", "mem_backend": memory}));
    assert!(code == 400 && answer.contains("tap") && answer.contains("not granted"), "{code} {answer}");
}

#[test]
fn snapshot_of_a_jail_is_refused_outside_of_one() {
    needs!(kvm, root, network);
    let (first, tap) = (Jails::new(), OwnedTap::new("one", USER));
    take(&first, &tap);
    for path in ["/state", "/memory"] {
        chown(first.path(path), Some(0), Some(0)).unwrap();
    }
    let guest = Guest::waiting();
    let body = json!({"snapshot_path": first.path("/state"), "mem_file_path": first.path("/memory")});
    let (code, answer) = guest.ask("PUT", "/snapshot/load", &body.to_string());
    assert!(code == 400 && answer.contains("which is not granted"), "{code} {answer}");
}
