//! A VM with a name runs in a process of its own, and the commands find it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use volt_tests::names::{exists, named, small};
use volt_tests::program::binary;
use volt_tests::scratch::list;
use volt_tests::wire::KIND;
use volt_tests::{Input, Names, Outcome, Wire, needs, wait_until};

#[test]
fn detached_vm_is_listed_until_it_is_stopped_and_removed() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let row = &names.json("ps --json")[0];
    assert_eq!(
        (&row["name"], &row["state"], &row["memory_mib"]),
        (&"web".into(), &"running".into(), &64.into())
    );
    assert_eq!(names.ok("ps --quiet"), "web\n");
    names.wait_for("web", "ready");
    assert_eq!(names.json("inspect web --json")["config"]["memory_mib"], 64);
    let pid = names.pid("web");
    assert_eq!(names.ok("stop --timeout 0 web"), "");
    wait_until("the process is gone", || !exists(pid));
    assert_eq!(names.ok("ps --quiet"), "", "an ended VM is listed with --all only");
    let ended = names.json("inspect web --json");
    assert_eq!((&ended["state"], &ended["end"]["cause"]), (&"ended".into(), &"stopped".into()));
    assert_eq!(ended["last_lines"][0], "ready");
    assert!(names.ok("ps -a").contains("a client of the API ended the VM"));
    names.ok("rm web");
    assert_eq!(names.json("ps -a --format json"), serde_json::json!([]));
}

#[test]
fn vm_is_found_by_name_id_and_socket() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let id = names.json("inspect web --json")["id"].as_str().unwrap().to_owned();
    let socket = names.of("web").join("api.sock").display().to_string();
    for word in ["web", &id, &id[..6], &socket] {
        assert_eq!(names.json(&format!("inspect {word} --json"))["name"], "web", "{word}");
    }
    assert_eq!(names.json(&format!("inspect --api-socket {socket} --json"))["name"], "web");
    for word in ["wob", "we", "../web", "zzz"] {
        assert_eq!(names.run(&format!("pause {word}")).status, 1, "{word}");
    }
    names.run("pause wob").refused(&["VM wob: no VM has this name", "volt-vmm ps -a"]);
}

#[test]
fn commands_for_vms_with_names_take_their_sockets() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    names.wait_for("web", "ready");
    let socket = names.of("web").join("api.sock").display().to_string();
    assert_eq!(names.json(&format!("stats --json {socket}"))[0]["name"], "web");
    assert_eq!(names.ok(&format!("logs {socket}")), "ready\n");
    names.run(&format!("rm {socket}")).refused(&["it runs"]);
    let words = |command: &str| [command, &socket].map(Into::into).to_vec();
    let mut waiting = names.start(words("wait"), Input::Null);
    let mut attached = names.start(words("attach"), Input::Test);
    attached.type_in("typed").wait_for("typed");
    assert!(waiting.is_running());
    names.ok(&format!("stop -t 0 {socket}"));
    assert_eq!((waiting.wait_exit().status, attached.wait_exit().status), (0, 0));
    // The socket is gone, and still names the VM.
    assert_eq!(names.run(&format!("wait {socket}")).status, 0);
    names.ok(&format!("rm {socket}"));
    assert_eq!(names.ok("ps -aq"), "");
}

#[test]
fn paused_vm_is_listed_as_such_and_resumes() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "count");
    names.wait_for("web", "count 1\n");
    names.ok("pause web");
    assert_eq!(names.state("web").as_deref(), Some("paused"));
    let quiet = names.ok("logs web");
    assert_eq!(names.ok("logs web"), quiet);
    names.ok("resume web");
    assert_eq!(names.state("web").as_deref(), Some("running"));
    wait_until("the guest goes on", || names.ok("logs web").len() > quiet.len());
    assert_eq!(names.ok("ps -q --filter state=paused"), "");
    assert_eq!(names.ok("ps -q --filter state=running --filter name=we"), "web\n");
    let refused = names.run("ps --filter colour=red");
    assert!(refused.status == 2 && refused.stderr.contains("write name=TEXT"), "{refused:?}");
}

#[test]
fn name_is_made_up_and_printed() {
    needs!(kvm);
    let names = Names::new();
    let mut words = small("echo");
    words.extend(["-d".into(), "--json".into()]);
    let outcome = Outcome::of_command(&mut names.command(words));
    let made: serde_json::Value = serde_json::from_str(&outcome.succeeded().stdout).unwrap();
    let name = made["name"].as_str().unwrap();
    assert_eq!(names.ok("ps -q"), format!("{name}\n"));
    assert_eq!(u64::from(names.pid(name)), made["pid"].as_u64().unwrap());
}

#[test]
fn invalid_name_is_refused() {
    let names = Names::new();
    let long = "x".repeat(300);
    for name in ["a/b", "a.b", "..", "", "-web", &long, "a\nb", "a\x1b[2Jb", "a b"] {
        let mut words = small("hello");
        words.push(format!("--name={name}").into());
        let outcome = Outcome::of_command(&mut names.command(words));
        assert!(outcome.status == 2 && outcome.stderr.contains("a name "), "{name:?}: {outcome:?}");
    }
    assert!(!names.root().exists());
}

#[test]
fn failed_start_leaves_no_name() {
    needs!(kvm);
    let names = Names::new();
    for naming in ["--detach", "--name web", "--name web --detach"] {
        names.run(&format!("run --kernel /no/kernel {naming}")).refused(&["cannot open kernel /no/kernel"]);
    }
    assert_eq!(names.ok("ps -aq"), "");
    names.run("restore --detach --name web /no/snapshot").refused(&["/no/snapshot"]);
    assert_eq!(names.ok("ps -aq"), "");
}

#[test]
fn run_directory_with_a_path_too_long_for_sockets_is_refused_in_words() {
    needs!(kvm);
    let names = Names::new();
    let root = names.scratch().path(&"long".repeat(25));
    for detached in [true, false] {
        let mut words = named("web", "echo");
        words.extend(detached.then(|| "--detach".into()));
        let mut command = names.command(words);
        let outcome = Outcome::of_command(command.env("VOLT_RUN_DIR", &root));
        outcome.refused(&["serial.sock", "too long"]);
        assert!(!root.join("web").exists());
    }
}

#[test]
fn files_of_a_vm_are_its_users_alone() {
    needs!(kvm);
    let names = Names::new();
    let mut words = small("echo");
    words.extend(["-d", "--name", "web", "--console", "--vsock", "cid=3"].map(Into::into));
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"umask 0; exec "$@""#, "sh"]).arg(binary()).args(words);
    Outcome::of_command(shell.envs(names.environment())).succeeded();
    let mode = |path: &std::path::Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o077;
    assert_eq!((mode(&names.root()), mode(&names.of("web"))), (0, 0));
    let files = list(&names.of("web"));
    for socket in ["api.sock", "serial.sock", "console.sock", "vsock"] {
        assert!(files.iter().any(|name| name == socket), "{files:?}");
    }
    for name in files {
        assert_eq!(mode(&names.of("web").join(&name)), 0, "{name}");
    }
}

#[test]
fn confined_vm_keeps_its_log_and_its_outcome() {
    needs!(kvm, root);
    for confinement in ["strict", "off"] {
        let names = Names::new();
        let mut words = small("echo");
        words.extend(["-d", "--name", "web", "--confine", confinement].map(Into::into));
        Outcome::of_command(&mut names.command(words)).succeeded();
        names.wait_for("web", "ready");
        assert_eq!(names.state("web").as_deref(), Some("running"), "{confinement}");
        names.ok("stop -t 0 web");
        assert_eq!(names.json("inspect web --json")["end"]["cause"], "stopped", "{confinement}");
    }
}

#[test]
fn stats_tell_processor_time_and_memory() {
    needs!(kvm);
    let names = Names::new();
    names.boot("busy", "stuck");
    names.boot("idle", "echo");
    let stats = names.json("stats --json");
    assert_eq!((&stats[0]["name"], &stats[1]["name"]), (&"busy".into(), &"idle".into()));
    assert!(stats[0]["cpu"].as_f64() > stats[1]["cpu"].as_f64(), "{stats}");
    assert!(stats[0]["private_bytes"].is_u64() && stats[0]["memory_mib"] == 64, "{stats}");
    assert!(names.ok("stats --no-stream idle").starts_with("NAME"));
    // The first vCPU of a restored VM runs on the main thread.
    names.ok("snapshot create busy warm");
    names.ok("restore -d --name clone warm");
    let stats = names.json("stats --json clone idle");
    assert_eq!((&stats[0]["name"], &stats[1]["name"]), (&"clone".into(), &"idle".into()));
    assert!(stats[0]["cpu"].as_f64() > stats[1]["cpu"].as_f64(), "{stats}");
    assert!(stats[0]["vcpu_seconds"].as_f64() > Some(0.0), "{stats}");
}

#[test]
fn stats_tell_the_data_of_disks_and_networks() {
    needs!(kvm, network);
    let names = Names::new();
    let (image, tap) = (names.scratch().path("image"), format!("v{}stats", std::process::id()));
    fs::File::create(&image).unwrap().set_len(64 * 512).unwrap();
    let disk = format!("path={}", image.display());
    for (name, option, value) in [("disk", "--disk", &disk), ("net", "--net", &format!("tap={tap}"))] {
        let mut words = small(name);
        words.extend(["-d", "--name", name, option, value].map(Into::into));
        Outcome::of_command(&mut names.command(words)).succeeded();
    }
    names.wait_for("disk", "sector 70\n");
    names.wait_for("net", "ready");
    let wire = Wire::of(&tap);
    let mut frame = [[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2].as_slice(), &KIND.to_be_bytes()].concat();
    frame.resize(200, 7);
    wire.send(&frame);
    assert_eq!(wire.receive().len(), 200);
    let stats = names.json("stats --json");
    let bytes = |row: usize, key: &str| stats[row][key].as_u64();
    assert_eq!((&stats[0]["name"], &stats[1]["name"]), (&"disk".into(), &"net".into()));
    for (row, key, least) in [
        (0, "disk_read_bytes", 64 * 512),
        (0, "disk_written_bytes", 64 * 512),
        (1, "net_received_bytes", 200),
        (1, "net_sent_bytes", 200),
    ] {
        assert!(bytes(row, key) >= Some(least), "{key}: {stats}");
        assert!(stats[1 - row][key].is_null(), "{key}: {stats}");
    }
    let table = names.ok("stats --no-stream");
    assert!(["READ", "WRITTEN", "RECEIVED", "SENT"].iter().all(|word| table.contains(word)), "{table}");
}

#[test]
fn metrics_are_those_of_all_living_vms() {
    needs!(kvm);
    let names = Names::new();
    let answered = |words: &str| {
        let text = names.ok(words);
        let line = text.lines().find(|line| line.starts_with(r#"volt_vmm_scraped_vms{outcome="answered"}"#));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<u32>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    assert_eq!(answered("metrics"), 0);
    for (name, behaviour) in [("web", "echo"), ("worker", "echo"), ("ended", "hello")] {
        names.boot(name, behaviour);
    }
    assert_eq!(names.run("wait ended").status, 0);
    assert_eq!(answered("metrics"), 2);
    assert_eq!(answered("metrics web"), 1);
    assert!(names.ok("metrics --by-vm").contains(r#"volt_vmm_vms{vm="worker",state="running"} 1"#));
}
