//! Firecracker's command line: its configuration file boots a guest, whose reboot is a success.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use volt_tests::program::binary;
use volt_tests::{Outcome, Scratch, needs, output, small_guest};

/// Writes a configuration of Firecracker's form whose guest behaves so.
fn configuration(scratch: &Scratch, behaviour: &str) -> PathBuf {
    let disk = scratch.fresh("disk");
    fs::write(&disk, [0; 4096]).unwrap();
    let config = json!({
        "boot-source": {"kernel_image_path": small_guest(), "boot_args": behaviour},
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 64, "smt": false},
        "drives": [{"drive_id": "d", "path_on_host": disk, "is_root_device": false, "is_read_only": null}],
        "vsock": null, "balloon": null,
    });
    let path = scratch.fresh("config.json");
    fs::write(&path, config.to_string()).unwrap();
    path
}

fn run(words: &[&str], file: &Path) -> Outcome {
    Outcome::of(words.iter().map(std::ffi::OsStr::new).chain([file.as_os_str()]))
}

#[test]
fn reboot_is_a_success_only_by_firecrackers_command_line() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = configuration(&scratch, "reboot");
    let boots = run(&["--no-api", "--config-file"], &file);
    assert_eq!(boots.status, 0, "{boots:?}");
    // Firecracker's guests end by a reboot after a panic, too.
    let panics = run(&["--no-api", "--config-file"], &configuration(&scratch, "panic"));
    assert_eq!(panics.status, 0, "{panics:?}");
    // The same guest by volt-vmm's own command line.
    let reboots = run(&["run", "--config-file"], &file);
    assert_eq!(reboots.status, 3, "{reboots:?}");
    // Another end is what it is.
    let crashes = run(&["--no-api", "--config-file"], &configuration(&scratch, "triple-fault"));
    assert_eq!(crashes.status, 4, "{crashes:?}");
}

#[test]
fn boot_timer_logs_one_line_of_a_guest_that_has_booted() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (file, log) = (configuration(&scratch, "booted"), scratch.fresh("log"));
    let log_path = log.to_str().unwrap();
    let lines = |words: &[&str]| {
        fs::write(&log, "").unwrap();
        let ended = run(&[&["--no-api", "--log-path", log_path], words, &["--config-file"]].concat(), &file);
        assert!(ended.status == 0 && ended.stdout.contains("booted"), "{ended:?}");
        let text = fs::read_to_string(&log).unwrap();
        text.lines().filter(|line| line.contains("Guest-boot-time = ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let timed = lines(&["--boot-timer"]);
    let [line] = &timed[..] else { panic!("{timed:?}") };
    let took: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [us, ms, cpu_us, cpu_ms] = took[..] else { panic!("{line}") };
    assert!(us > 0 && us / 1000 == ms && cpu_us > 0 && cpu_us / 1000 == cpu_ms, "{line}");
    assert_eq!(lines(&[]), [""; 0], "without the timer");
}

#[test]
fn program_of_the_name_firecracker_has_its_command_line() {
    let scratch = Scratch::new();
    let program = scratch.path("firecracker");
    symlink(binary(), &program).unwrap();
    let said = |arguments: &[&str]| {
        let done = output(Command::new(&program).args(arguments));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    };
    let (status, version, _) = said(&["--version"]);
    assert_eq!((status, version.lines().next()), (Some(0), Some("Firecracker v1.17.0")));
    let (status, help, _) = said(&["--help"]);
    assert!(status == Some(0) && help.contains("--api-sock") && help.contains("--no-api"), "{help}");
    let (status, _, error) = said(&["--enable-pci"]);
    assert!(status == Some(2) && error.contains("volt-vmm has no PCI"), "{error}");
    let file = scratch.fresh("bad.json");
    fs::write(&file, r#"{"boot-source": {"kernel_image_path": "/k"}, "pmem": [{}]}"#).unwrap();
    let (status, _, error) = said(&["--no-api", "--config-file", file.to_str().unwrap()]);
    let expected = format!("volt-vmm: config file {}: pmem: not supported; leave it out\n", file.display());
    assert_eq!((status, error), (Some(1), expected));
}
