//! Firecracker's command line: its configuration file boots a guest, whose reboot is a success.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde_json::{Value, json};
use volt_tests::program::binary;
use volt_tests::{Guest, Outcome, Scratch, needs, output, small_guest, wait_until};

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

/// Boots a guest that reports its boot, with these options. Returns what is in the log after its end.
fn log_of(words: &[&str]) -> String {
    let scratch = Scratch::new();
    let (file, log) = (configuration(&scratch, "booted"), scratch.fresh("log"));
    let start = ["--no-api", "--log-path", log.to_str().unwrap()];
    let ended = run(&[&start, words, &["--config-file"]].concat(), &file);
    assert!(ended.status == 0 && ended.stdout.contains("booted"), "{ended:?}");
    fs::read_to_string(&log).unwrap()
}

#[test]
fn boot_timer_logs_one_line_of_a_guest_that_has_booted() {
    needs!(kvm);
    let lines = |words: &[&str]| {
        let text = log_of(words);
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
fn options_of_the_log_choose_its_lines_and_their_layout() {
    needs!(kvm);
    let lines = |words: &[&str]| log_of(&[&["--boot-timer", "--id", "web"], words].concat());
    // The thread that the guest runs on, which the layout names.
    let plain = lines(&[]);
    let thread = plain.split_once("[web:").and_then(|(_, rest)| rest.split_once("] Guest-boot-time"));
    let thread = thread.unwrap_or_else(|| panic!("{plain}")).0;
    assert!(!thread.contains(':'), "{plain}");
    let levels = lines(&["--show-level"]);
    assert!(levels.contains(&format!("[web:{thread}:INFO] Guest-boot-time")), "{levels}");
    let both = lines(&["--show-level", "--show-log-origin", "--level", "info", "--module", "volt_vmm"]);
    let origin = both.split_once(&format!("[web:{thread}:INFO:")).unwrap_or_else(|| panic!("{both}")).1;
    let (place, _) = origin.split_once("] Guest-boot-time").unwrap_or_else(|| panic!("{both}"));
    let (source, line) = place.rsplit_once(':').unwrap();
    assert!(source.ends_with(".rs") && line.parse::<u32>().is_ok(), "{both}");
    for silent in [["--level", "Warning"], ["--module", "volt_api::none"]] {
        assert!(!lines(&silent).contains("Guest-boot-time"), "{silent:?}");
    }
}

/// Boots a guest that reports its boot and lives on, by requests to a process with these options.
fn booted_by_requests(options: &[&str]) -> Guest {
    let mut guest = Guest::of_firecracker(options);
    for (path, body) in [
        ("/boot-source", json!({"kernel_image_path": small_guest(), "boot_args": "booted echo=1"})),
        ("/machine-config", json!({"vcpu_count": 1, "mem_size_mib": 64})),
        ("/actions", json!({"action_type": "InstanceStart"})),
    ] {
        assert_eq!(guest.ask("PUT", path, &body.to_string()), (204, String::new()), "{path}");
    }
    guest.wait_for("ready\n");
    guest
}

/// Appends all that a file or FIFO has, which is open without waiting.
fn drain(file: &mut fs::File, into: &mut Vec<u8>) {
    // An empty FIFO is an error, after all that it had.
    let _ = file.read_to_end(into);
}

#[test]
fn options_of_log_metrics_and_boot_timer_count_for_a_guest_that_requests_boot() {
    needs!(kvm);
    let scratch = Scratch::new();
    for (level, is_fifo) in [("Info", false), ("Info", true), ("Warning", false)] {
        let [log, metrics] = ["log", "metrics"].map(|name| scratch.fresh(name));
        let kind = if is_fifo { FileType::Fifo } else { FileType::RegularFile };
        mknodat(CWD, &log, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let mut reader = fs::File::from(rustix::fs::open(&log, flags, Mode::empty()).unwrap());
        let paths = ["--log-path", log.to_str().unwrap(), "--metrics-path", metrics.to_str().unwrap()];
        let layout = ["--id", "web", "--level", level, "--show-level", "--show-log-origin"];
        let guest =
            booted_by_requests(&[&paths[..], &layout, &["--module", "volt_vmm", "--boot-timer"]].concat());
        // The guest reports its boot before it is ready.
        let mut said = Vec::new();
        drain(&mut reader, &mut said);
        let said = String::from_utf8(said).unwrap();
        let timed: Vec<_> = said.lines().filter(|line| line.contains("] Guest-boot-time = ")).collect();
        match (level, &timed[..]) {
            ("Info", [line]) => {
                assert!(line.contains("[web:") && line.contains(":INFO:") && line.contains(".rs:"), "{line}");
            }
            ("Warning", []) => assert_eq!(said, ""),
            _ => panic!("{level}, {is_fifo}: {said}"),
        }
        let lines = || fs::read_to_string(&metrics).unwrap_or_default();
        wait_until("the start has a line", || lines().ends_with('\n'));
        let of_start = lines();
        let flush = json!({"action_type": "FlushMetrics"}).to_string();
        assert_eq!(guest.ask("PUT", "/actions", &flush), (204, String::new()));
        let flushed: Value = serde_json::from_str(&lines()[of_start.len()..]).unwrap();
        assert!(flushed["utc_timestamp_ms"].as_u64() > Some(0), "{flushed}");
    }
}

#[test]
fn state_file_tells_its_version() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.next_number("count");
    let state = guest.snapshot().state_path();
    let version = |words: &[&str]| Outcome::of(words).succeeded().stdout.clone();
    let described = version(&["--describe-snapshot", state.to_str().unwrap()]);
    assert!(described.starts_with('v') && described.ends_with(".0.0\n"), "{described}");
    assert_eq!(described, version(&["--snapshot-version"]));
}

#[test]
fn body_over_firecrackers_limit_is_refused_unless_an_option_allows_it() {
    let text = |len: usize| json!("x".repeat(len - 2)).to_string();
    for (options, limit) in [(&[][..], 51_200), (&["--http-api-max-payload-size", "60000"], 60_000)] {
        let guest = Guest::of_firecracker(options);
        assert_eq!(guest.ask("PUT", "/mmds", &text(limit)), (204, String::new()));
        let (status, answer) = guest.ask("PUT", "/mmds", &text(limit + 1));
        let words = format!("longer than {limit} bytes");
        assert!(status == 413 && answer.contains(&words), "{status} {answer}");
    }
}

/// A configuration with all keys of Firecracker's documentation (docs/getting-started.md, docs/mmds,
/// docs/ballooning.md, docs/entropy.md) boots.
#[test]
fn configuration_of_firecrackers_documentation_boots() {
    needs!(kvm);
    let scratch = Scratch::new();
    let [disk, log, metrics] = ["rootfs", "log", "metrics"].map(|name| scratch.fresh(name));
    fs::write(&disk, [0; 4096]).unwrap();
    let config = json!({
        "boot-source": {
            "kernel_image_path": small_guest(),
            "boot_args": "booted console=ttyS0 reboot=k panic=1 pci=off",
            "initrd_path": null,
        },
        "cpu-config": null,
        "drives": [{
            "drive_id": "rootfs", "partuuid": null, "is_root_device": true, "cache_type": "Unsafe",
            "is_read_only": false, "path_on_host": disk, "io_engine": "Sync", "socket": null,
            "rate_limiter": {
                "bandwidth": {"size": 1_000_000, "one_time_burst": null, "refill_time": 100},
                "ops": null,
            },
        }],
        "machine-config": {
            "vcpu_count": 2, "mem_size_mib": 1024, "smt": false, "track_dirty_pages": false,
            "huge_pages": "None",
        },
        "balloon": {
            "amount_mib": 0, "deflate_on_oom": false, "stats_polling_interval_s": 1,
            "free_page_reporting": false, "free_page_hinting": false,
        },
        "network-interfaces": [],
        "vsock": {"guest_cid": 3, "uds_path": scratch.fresh("vsock")},
        "logger": {
            "log_path": log, "level": "Info", "show_level": false, "show_log_origin": false, "module": null,
        },
        "metrics": {"metrics_path": metrics},
        "mmds-config": null,
        "entropy": {"rate_limiter": null},
        "serial": null,
        "pmem": [],
        "memory-hotplug": null,
    });
    let path = scratch.fresh("vm_config.json");
    fs::write(&path, config.to_string()).unwrap();
    let boots = run(&["--no-api", "--config-file"], &path);
    assert!(boots.status == 0 && boots.stdout.contains("booted"), "{boots:?}");
    assert!(fs::read_to_string(&metrics).unwrap().contains("\"utc_timestamp_ms\""));
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
