//! Metrics: guests that do known work, and the numbers that must follow from it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use serde_json::{Value, json};
use volt_tests::streams::echoes;
use volt_tests::vsock::connect;
use volt_tests::wire::KIND;
use volt_tests::{
    Boot, Exposition, Guest, Outcome, Recorder, Scratch, Snapshot, Wire, needs, numbers, small_guest,
    wait_until,
};
use volt_vmm::{Metrics, RestoreOptions, SnapshotAct, Vm};

/// Sectors that the guests write, each once, and read back.
const WRITES: f64 = 40.0;

fn metrics(guest: &Guest) -> Exposition {
    let (status, text) = guest.ask("GET", "/metrics", "");
    assert_eq!(status, 200, "{text}");
    Exposition::parse(&text)
}

/// Waits until the serial port has counted all that its guest said: a byte counts after it is written.
fn wait_until_counted(guest: &Guest) {
    let sent = r#"volt_vmm_serial_bytes_total{direction="transmit"}"#;
    wait_until("the last byte is counted", || metrics(guest).get(sent) == guest.output().len() as f64);
}

fn image(scratch: &Scratch) -> String {
    let image = scratch.fresh("image");
    fs::File::create(&image).unwrap().set_len(64 * 512).unwrap();
    image.display().to_string()
}

fn of_disk(family: &str, operation: &str) -> String {
    format!("volt_vmm_device_{family}{{device=\"disk-d\",operation=\"{operation}\"}}")
}

#[test]
fn known_disk_operations_are_counted_exactly_and_a_clone_begins_at_zero() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let disk = format!("path={},id=d,engine={engine}", image(&scratch));
        let mut guest = Boot::small(&format!("disk until={WRITES}")).device(["--disk", &disk]).start();
        guest.wait_for("done\n");
        wait_until_counted(&guest);
        let found = metrics(&guest);
        for operation in ["read", "write"] {
            assert_eq!(found.get(&of_disk("operation_seconds_count", operation)), WRITES, "{engine}");
            assert_eq!(found.get(&of_disk("bytes_total", operation)), 512.0 * WRITES, "{engine}");
            assert!(found.get(&of_disk("operation_seconds_sum", operation)) > 0.0, "{engine}");
        }
        assert_eq!(found.sum("volt_vmm_device_failed_operations_total"), 0.0);
        let turns = found.get(r#"volt_vmm_queue_turns_total{device="disk-d",queue="requests"}"#);
        // The guest waits for each request, but the next one may come before the device's turn ends.
        assert!((1.0..=2.0 * WRITES).contains(&turns), "{engine}: {turns}");
        let sent = found.get(r#"volt_vmm_serial_bytes_total{direction="transmit"}"#);
        assert_eq!(sent, guest.output().len() as f64);
        let exits = found.get(r#"volt_vmm_vcpu_exits_total{vcpu="0",reason="pio_write"}"#);
        assert!(exits >= sent, "{exits} exits for {sent} bytes");
        assert!(found.get(r#"volt_vmm_vcpu_exit_seconds_total{vcpu="0",reason="pio_write"}"#) > 0.0);
        let of_device = |family| found.get(&format!("volt_vmm_device_{family}_total{{device=\"disk-d\"}}"));
        assert!(of_device("notifications") >= 1.0, "{engine}");
        // The guest asks for an interrupt after each request; one may tell of two.
        let interrupts = of_device("interrupts");
        assert!((1.0..=2.0 * WRITES).contains(&interrupts), "{engine}: {interrupts}");
        assert_eq!(of_device("failures"), 0.0);
        assert_eq!(found.get(r#"volt_vmm_queue_stalls_total{device="disk-d",queue="requests"}"#), 0.0);
        assert_eq!(found.get("volt_vmm_log_lines_lost_total"), 0.0);
        assert_eq!(found.get("volt_vmm_memory_given_back_bytes_total"), 0.0);
        assert_eq!(found.get(r#"volt_vmm_vms{state="running"}"#), 1.0);
        assert!(
            !found.has("volt_vmm_restore_seconds_count") && !found.has("volt_vmm_snapshot_seconds_count")
        );
        guest.pause();
        let snapshot = guest.snapshot();
        let taken = r#"volt_vmm_snapshot_seconds_count{kind="full"}"#;
        let of_parent = metrics(&guest);
        assert_eq!(of_parent.get(taken), 1.0);
        assert_eq!(of_parent.get(r#"volt_vmm_snapshot_disk_stop_seconds_count{kind="full"}"#), 1.0);
        assert!(of_parent.get("volt_vmm_memory_base_bytes") > 0.0, "the pages that the snapshot froze");
        drop(guest);
        let clone = metrics(&snapshot.restore());
        assert_eq!(clone.sum("volt_vmm_device_bytes_total"), 0.0, "{engine}");
        assert_eq!(clone.sum("volt_vmm_serial_bytes_total"), 0.0, "{engine}");
        assert_eq!(clone.get("volt_vmm_restore_seconds_count"), 1.0);
        assert_eq!(clone.get(r#"volt_vmm_restore_phase_seconds_count{phase="state"}"#), 1.0);
        assert!(clone.get("volt_vmm_restore_seconds_sum") > 0.0);
        assert!(!clone.has("volt_vmm_snapshot_seconds_count"), "the parent's snapshots");
    }
}

#[test]
fn memory_of_a_vm_alone_grows_by_what_its_guest_writes() {
    needs!(kvm);
    const MIB: f64 = 1_048_576.0;
    let mut guest = Guest::boot("count mib=16");
    guest.wait_for("count 5\n");
    let mut clone = guest.snapshot().restore_as(&["--paused"]);
    let private = |clone: &Guest| {
        let found = metrics(clone).get("volt_vmm_memory_private_bytes");
        let told: Value = serde_json::from_str(&clone.ask("GET", "/v1/vm/memory", "").1).unwrap();
        assert_eq!(told["private_bytes"].as_f64(), Some(found), "{told}");
        found
    };
    let before = private(&clone);
    clone.resume();
    // A number stands for 64 pages of 4 KiB, so 64 numbers are all 16 MiB.
    let first = clone.next_number("count");
    while clone.next_number("count") < first + 64 {}
    clone.pause();
    let grown = private(&clone) - before;
    assert!((16.0 * MIB..17.0 * MIB).contains(&grown), "{before} bytes and {grown}");
}

#[test]
fn random_bytes_and_waits_for_the_limit_are_counted() {
    needs!(kvm);
    let limited = json!({
        "boot": {"kernel": small_guest(), "cmdline": "random"},
        "devices": {"rng": true, "rng_limit": {"ops": {"size": 1, "refill_time": 60}}},
    });
    let guest = Guest::waiting();
    assert_eq!(guest.ask("PUT", "/v1/boot", &limited.to_string()), (204, String::new()));
    wait_until("some numbers are drawn", || numbers(&guest.output(), "drawn").len() >= 10);
    let said = guest.paused_in_whole_lines();
    let drawn = numbers(&said, "drawn").len() as f64;
    let found = metrics(&guest);
    let count = found.get(r#"volt_vmm_device_operation_seconds_count{device="rng",operation="requests"}"#);
    assert!(count == drawn || count == drawn + 1.0, "{count} requests, {drawn} numbers");
    let bytes = found.get(r#"volt_vmm_device_bytes_total{device="rng",operation="requests"}"#);
    assert_eq!(bytes, 64.0 * count);
    let of_limit =
        |family| found.get(&format!("volt_vmm_{family}_total{{device=\"rng\",queue=\"requests\"}}"));
    let (waits, waited) = (of_limit("rate_limit_waits"), of_limit("rate_limit_wait_seconds"));
    // On a busy host, some time of the limit has passed when the guest asks again.
    assert!(waits >= 2.0 && waits <= count + 1.0, "{waits} waits of {count}");
    assert!(waited > 0.0 && waited < 60.0, "{waited} s");
}

#[test]
fn page_faults_of_packed_memory_are_counted_in_the_process_that_answers_them() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=8").start();
    guest.wait_for("count 5\n");
    let packed = guest.snapshot().converted(&["--compress", "lz4"]);
    drop(guest);
    let scratch = Scratch::new();
    let pagers = scratch.fresh("pagers");
    let shared = ["--pager", "shared", "--pager-dir", pagers.to_str().unwrap()];
    for options in [&[][..], &shared] {
        let mut clone = packed.restore_as(options);
        clone.wait_for("count ");
        let found = metrics(&clone);
        let read = found.get(r#"volt_vmm_page_fault_seconds_count{kind="read"}"#);
        assert!(read >= 1.0 && read <= found.get("volt_vmm_touched_chunks"), "{options:?}: {read}");
        assert!(found.get(r#"volt_vmm_page_fault_seconds_sum{kind="read"}"#) > 0.0, "{options:?}");
        assert_eq!(found.get(r#"volt_vmm_page_fault_seconds_count{kind="failed"}"#), 0.0);
        for kind in ["zero", "present"] {
            let count = found.get(&format!("volt_vmm_page_fault_seconds_count{{kind=\"{kind}\"}}"));
            let sum = found.get(&format!("volt_vmm_page_fault_seconds_sum{{kind=\"{kind}\"}}"));
            assert_eq!(count > 0.0, sum > 0.0, "{kind}: {count} faults, {sum} s");
        }
    }
}

#[test]
fn bytes_and_connections_of_vsock_are_counted_without_headers() {
    needs!(kvm);
    let scratch = Scratch::new();
    let socket = scratch.fresh("vsock");
    let words = format!("cid=5,socket={}", socket.display());
    let mut guest = Boot::small("vsock").device(["--vsock", &words]).start();
    guest.next_number("cid");
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| at as u8).collect();
    (0..2).for_each(|_| echoes(&connect(&socket, 1000), &bytes));
    let ended = "volt_vmm_vsock_connections_ended_total";
    wait_until("both connections have ended", || metrics(&guest).get(ended) == 2.0);
    let found = metrics(&guest);
    for operation in ["receive", "transmit"] {
        let labels = format!("{{device=\"vsock\",operation=\"{operation}\"}}");
        let of = |family| found.get(&format!("volt_vmm_device_{family}{labels}"));
        assert_eq!(of("bytes_total"), 40_000.0, "{operation}");
        assert!(of("operation_seconds_count") >= 40.0, "the guest has buffers of 1 KiB");
    }
    assert_eq!(found.sum("volt_vmm_vsock_connections_total"), 2.0);
}

#[test]
fn frames_of_a_network_are_counted_without_headers() {
    needs!(kvm, network);
    let tap = format!("v{}m", std::process::id());
    let mut guest = Boot::small("net").device(["--net", &format!("id=eth0,tap={tap}")]).start();
    guest.wait_for("ready");
    let wire = Wire::of(&tap);
    let lengths = [60, 100, 1514];
    for len in lengths {
        let mut frame = vec![2; len];
        frame[12..14].copy_from_slice(&KIND.to_be_bytes());
        wire.send(&frame);
        assert_eq!(wire.receive().len(), len);
    }
    guest.pause();
    let found = metrics(&guest);
    let of = |family, operation| {
        found.get(&format!("volt_vmm_device_{family}{{device=\"net-eth0\",operation=\"{operation}\"}}"))
    };
    let (count, bytes) = (lengths.len() as f64, lengths.iter().sum::<usize>() as f64);
    assert_eq!(of("operation_seconds_count", "transmit"), count);
    assert_eq!(of("bytes_total", "transmit"), bytes);
    // The host may send frames of its own.
    assert!(of("operation_seconds_count", "receive") >= count && of("bytes_total", "receive") >= bytes);
    assert_eq!(of("failed_operations_total", "transmit"), 0.0);
}

#[test]
fn children_of_a_fork_begin_at_zero_and_a_rewind_leaves_the_numbers() {
    needs!(kvm);
    let recorder = Recorder::default();
    let builder = Vm::builder().kernel(small_guest()).cmdline("count mib=4").memory_mib(64);
    let parent = builder.console(recorder.console()).start().unwrap();
    recorder.wait_for("count 5\n");
    let child = parent.fork([RestoreOptions::default().paused()]).unwrap().pop().unwrap();
    let (of_parent, of_child) = (parent.metrics(), child.metrics());
    let exits = |metrics: &Metrics| metrics.vcpus.iter().flatten().map(|exits| exits.count).sum::<u64>();
    assert!(exits(&of_parent) > 0 && of_parent.serial.sent_bytes > 0 && of_parent.restore.is_none());
    assert_eq!((exits(&of_child), of_child.serial.sent_bytes), (0, 0));
    assert!(of_child.restore.is_some_and(|phases| !phases.state.is_zero() && phases.resume.is_zero()));
    let act = |metrics: &Metrics, act| metrics.snapshots.iter().find(|acts| acts.act == act).copied();
    let fork = act(&of_parent, SnapshotAct::InMemory).unwrap();
    assert_eq!((fork.duration.count(), fork.paused.count(), fork.failed), (1, 1, 0));
    assert!(fork.paused.sum <= fork.duration.sum && of_child.snapshots.is_empty());
    child.resume().unwrap();
    wait_until("the child writes", || child.metrics().serial.sent_bytes > 20);
    child.pause().unwrap();
    let before = child.metrics();
    child.rewind().unwrap();
    let after = child.metrics();
    assert_eq!((exits(&after), after.serial), (exits(&before), before.serial));
    assert_eq!(act(&after, SnapshotAct::Rewind).unwrap().duration.count(), 1);
    parent.rewind().unwrap_err();
    assert_eq!(act(&parent.metrics(), SnapshotAct::Rewind).unwrap().failed, 1);
}

#[test]
fn snapshots_and_failures_are_counted_by_kind() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=4").start();
    guest.wait_for("count 5\n");
    let first: Snapshot = guest.snapshot();
    let _diff = guest.snapshot_as(&["--diff"]);
    guest.try_snapshot(first.directory()).refused(&["exists"]);
    let found = metrics(&guest);
    let of = |family: &str, kind| found.get(&format!("volt_vmm_snapshot_{family}{{kind=\"{kind}\"}}"));
    assert_eq!(["full", "diff", "memory"].map(|kind| of("seconds_count", kind)), [1.0, 1.0, 0.0]);
    assert_eq!(["full", "diff"].map(|kind| of("failures_total", kind)), [1.0, 0.0]);
    assert!(of("pause_seconds_sum", "full") > 0.0);
    assert!(of("pause_seconds_sum", "full") < of("seconds_sum", "full"));
}

#[test]
fn vms_are_summed_by_the_command_line() {
    needs!(kvm);
    let guests = [Boot::small("count mib=4"), Boot::small("count mib=4")].map(|boot| boot.start());
    guests.iter().for_each(|guest| drop(metrics(guest)));
    let sockets = guests.each_ref().map(|guest| guest.socket().as_os_str().to_owned());
    let missing = guests[0].scratch().path("missing").into_os_string();
    let arguments = ["metrics".into()].into_iter().chain(sockets.clone()).chain([missing]);
    let outcome = Outcome::of(arguments);
    let found = Exposition::parse(&outcome.succeeded().stdout);
    assert_eq!(found.get(r#"volt_vmm_vms{state="running"}"#), 2.0);
    assert_eq!(found.get(r#"volt_vmm_scraped_vms{outcome="answered"}"#), 2.0);
    assert_eq!(found.get(r#"volt_vmm_scraped_vms{outcome="skipped"}"#), 1.0);
    let apart = Outcome::of(["metrics".into(), "--by-vm".into()].into_iter().chain(sockets.clone()));
    let apart = Exposition::parse(&apart.succeeded().stdout);
    for socket in sockets {
        let vm = socket.to_str().unwrap();
        assert_eq!(apart.get(&format!("volt_vmm_vms{{vm=\"{vm}\",state=\"running\"}}")), 1.0);
    }
    let refused = Outcome::of(["metrics", "no-such-vm"]);
    assert!(refused.status == 1 && refused.stderr.contains("no VM has this name"), "{refused:?}");
}

/// Growth of a key in each line.
fn of_lines(lines: &[Value], object: &str, key: &str) -> Vec<u64> {
    let number =
        |line: &Value| line[object][key].as_u64().unwrap_or_else(|| panic!("{object}.{key}: {line}"));
    lines.iter().map(number).collect()
}

fn lines_of(text: &str) -> Vec<Value> {
    assert!(text.ends_with('\n'), "{text}");
    let line = |line: &str| {
        assert!(line.starts_with("{\"utc_timestamp_ms\":"), "{line}");
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    text.lines().map(line).collect()
}

/// Boots a guest through Firecracker's API with metrics at `path`.
fn boot_with_metrics(path: &Path, behaviour: &str, disk: &str) -> Guest {
    let guest = Guest::waiting();
    let boot = json!({"kernel_image_path": small_guest(), "boot_args": behaviour});
    let drive = json!({"drive_id": "d", "path_on_host": disk, "is_root_device": false});
    for (method, request, body) in [
        ("PUT", "/metrics", json!({"metrics_path": path})),
        ("PUT", "/boot-source", boot),
        ("PUT", "/drives/d", drive),
        ("PUT", "/actions", json!({"action_type": "InstanceStart"})),
    ] {
        assert_eq!(guest.ask(method, request, &body.to_string()), (204, String::new()), "{request}");
    }
    guest
}

fn flush(guest: &Guest) {
    let body = json!({"action_type": "FlushMetrics"}).to_string();
    assert_eq!(guest.ask("PUT", "/actions", &body), (204, String::new()));
}

#[test]
fn each_flush_writes_a_line_with_the_work_since_the_last_one() {
    needs!(kvm);
    let scratch = Scratch::new();
    let path = scratch.fresh("metrics");
    let mut guest = boot_with_metrics(&path, &format!("disk until={WRITES}"), &image(&scratch));
    guest.wait_for("done\n");
    wait_until_counted(&guest);
    wait_until("the start has a line", || fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n')));
    flush(&guest);
    flush(&guest);
    let lines = lines_of(&fs::read_to_string(&path).unwrap());
    assert_eq!(lines.len(), 3, "one of the start, and one for each flush");
    for (object, key, wanted) in [
        ("block", "write_count", WRITES as u64),
        ("block_d", "write_count", WRITES as u64),
        ("block_d", "write_bytes", 512 * WRITES as u64),
        ("block_d", "read_count", WRITES as u64),
        ("block_d", "execute_fails", 0),
        ("uart", "write_count", guest.output().len() as u64),
        ("put_api_requests", "drive_count", 1),
        ("put_api_requests", "metrics_count", 1),
    ] {
        let numbers = of_lines(&lines, object, key);
        assert_eq!(numbers.iter().sum::<u64>(), wanted, "{object}.{key}: {numbers:?}");
        assert_eq!(numbers[2], 0, "{object}.{key}: nothing since the second line");
    }
    let shortest = |line: &Value| line["block_d"]["read_agg"]["min_us"].as_u64();
    assert!(shortest(&lines[1]).is_some() && shortest(&lines[1]) == shortest(&lines[2]), "it stays");
    let actions = of_lines(&lines, "put_api_requests", "actions_count");
    assert_eq!(actions[2], 1, "the first flush was a request");
    let again = json!({"metrics_path": path}).to_string();
    let (status, text) = guest.ask("PUT", "/metrics", &again);
    assert!(status == 400 && text.contains("not supported after starting the microVM"), "{text}");
    let (_, config) = guest.ask("GET", "/vm/config", "");
    assert!(config.contains("metrics_path"), "{config}");
}

/// Boots a guest that asks the metadata service, which requires tokens, with a file of metrics.
fn boot_with_metadata(path: &Path) -> Guest {
    let mut guest = Guest::waiting();
    let tap = format!("mm{}", std::process::id());
    for (request, body) in [
        ("/metrics", json!({"metrics_path": path})),
        ("/boot-source", json!({"kernel_image_path": small_guest(), "boot_args": "metadata"})),
        ("/machine-config", json!({"vcpu_count": 1, "mem_size_mib": 64})),
        ("/cpu-config", json!({})),
        ("/serial", json!({})),
        ("/network-interfaces/eth0", json!({"iface_id": "eth0", "host_dev_name": tap})),
        ("/mmds/config", json!({"network_interfaces": ["eth0"], "version": "V2"})),
        ("/mmds", json!({"latest": {"user-data": "hello"}})),
        ("/actions", json!({"action_type": "InstanceStart"})),
    ] {
        assert_eq!(guest.ask("PUT", request, &body.to_string()), (204, String::new()), "{request}");
    }
    guest.wait_for("ready");
    guest
}

#[test]
fn lines_have_the_work_of_the_metadata_service_and_its_requests() {
    needs!(kvm, network);
    let scratch = Scratch::new();
    let path = scratch.fresh("metrics");
    let mut guest = boot_with_metadata(&path);
    for (order, answer) in [("p", "401 "), ("t", "200 "), ("g", "200 hello")] {
        let line = guest.type_in(order).next_line(&format!("{order} "));
        assert!(line.starts_with(answer), "{order}: {line}");
    }
    assert_eq!(guest.ask("PUT", "/mmds/config", "{}").0, 400);
    assert_eq!(guest.ask("PATCH", "/mmds", r#"{"a":"b"}"#).0, 204);
    assert_eq!(guest.ask("GET", "/mmds", "").0, 200);
    // The last packets of a connection follow its answer.
    let sum = |object: &str, key: &str| {
        of_lines(&lines_of(&fs::read_to_string(&path).unwrap()), object, key).iter().sum::<u64>()
    };
    wait_until("three connections have ended", || {
        flush(&guest);
        sum("mmds", "connections_destroyed") == 3
    });
    for (object, key, wanted) in [
        ("mmds", "connections_created", 3),
        ("mmds", "rx_no_token", 1),
        ("mmds", "rx_invalid_token", 0),
        ("mmds", "rx_accepted_unusual", 0),
        ("put_api_requests", "mmds_count", 3),
        ("put_api_requests", "mmds_fails", 1),
        ("put_api_requests", "cpu_cfg_count", 1),
        ("put_api_requests", "serial_count", 1),
        ("put_api_requests", "serial_fails", 0),
        ("patch_api_requests", "mmds_count", 1),
        ("get_api_requests", "mmds_count", 1),
    ] {
        assert_eq!(sum(object, key), wanted, "{object}.{key}");
    }
    let (accepted, frames, bytes) =
        (sum("mmds", "rx_accepted"), sum("mmds", "tx_frames"), sum("mmds", "tx_bytes"));
    // ARP, and for each connection at least its opening, a request and its end.
    assert!(accepted > 9 && accepted == sum("mmds", "rx_count"), "{accepted}");
    assert!(frames > 6 && bytes > 54 * frames, "{frames} frames of {bytes} bytes");
}

#[test]
fn fifo_without_a_reader_delays_nothing_and_keeps_whole_lines() {
    needs!(kvm);
    let scratch = Scratch::new();
    let path = scratch.fresh("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut guest = boot_with_metrics(&path, "disk", &image(&scratch));
    (0..60).for_each(|_| flush(&guest));
    let number = guest.next_number("sector");
    while guest.next_number("sector") < number + 10 {}
    let lost = metrics(&guest).get("volt_vmm_metrics_lines_lost_total");
    assert!(lost > 0.0, "60 lines fit into a FIFO");
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let mut reader = fs::File::from(rustix::fs::open(&path, flags, Mode::empty()).unwrap());
    let mut read = Vec::new();
    let mut drain = |read: &mut Vec<u8>| {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            read.extend_from_slice(&bytes[..count]);
        }
    };
    drain(&mut read);
    guest.pause();
    flush(&guest);
    drain(&mut read);
    let lines = lines_of(str::from_utf8(&read).unwrap());
    assert_eq!(lines.len() as f64 + lost, 62.0, "the start, 60 flushes and one more");
    let written: u64 = of_lines(&lines, "block", "write_count").iter().sum();
    let total = metrics(&guest).get(&of_disk("operation_seconds_count", "write"));
    assert_eq!(written as f64, total, "lost lines' numbers are in later ones");
    assert_eq!(of_lines(&lines, "logger", "missed_metrics_count").iter().sum::<u64>() as f64, lost);
}

#[test]
fn metrics_of_a_configuration_file_end_with_the_guest() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (path, file) = (scratch.fresh("metrics"), scratch.fresh("config.json"));
    let mut config = json!({
        "boot-source": {"kernel_image_path": small_guest(), "boot_args": "disk until=7 ending=1"},
        "drives": [{"drive_id": "d", "path_on_host": image(&scratch), "is_root_device": false}],
        "metrics": {"metrics_path": path},
    });
    let run = |config: &Value, options: &[&str]| {
        fs::write(&file, config.to_string()).unwrap();
        let words = ["--no-api", "--config-file", file.to_str().unwrap()];
        Outcome::of(words.iter().chain(options))
    };
    run(&config, &["--start-time-us", "0"]).succeeded();
    let lines = lines_of(&fs::read_to_string(&path).unwrap());
    assert_eq!(of_lines(&lines, "block_d", "write_count").iter().sum::<u64>(), 7, "{lines:?}");
    assert!(lines.len() <= 2 && of_lines(&lines, "api_server", "process_startup_time_us")[0] > 0);
    let twice = run(&config, &["--metrics-path", path.to_str().unwrap()]);
    twice.refused(&["Reinitialization of metrics not allowed", "--metrics-path"]);
    let by_option = scratch.fresh("by-option");
    config.as_object_mut().unwrap().remove("metrics");
    run(&config, &["--metrics-path", by_option.to_str().unwrap()]).succeeded();
    assert_eq!(
        of_lines(&lines_of(&fs::read_to_string(&by_option).unwrap()), "i8042", "reset_count").len(),
        2
    );
    let missing = run(&config, &["--metrics-path", "/missing/m"]);
    missing.refused(&["cannot open metrics /missing/m: No such file"]);
    let objects: BTreeMap<String, Value> = serde_json::from_value(lines[0].clone()).unwrap();
    for object in ["api_server", "block", "block_d", "latencies_us", "uart", "vcpu", "logger", "interrupts"] {
        assert!(objects.contains_key(object), "{object}: {lines:?}");
    }
    assert!(!objects.contains_key("net") && !objects.contains_key("vsock"), "the VM has none: {lines:?}");
}
