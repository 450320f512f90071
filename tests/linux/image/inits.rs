//! Images whose command is an init: it is process 1, and its streams are those of the serial port.

use volt_tests::{Input, need, needs, wait_until};

use super::runs::{IMAGE, Images};

#[test]
fn init_of_an_image_is_process_1_on_the_serial_port() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let mut guest = images.start(&["run", "--rm", IMAGE, "/sbin/init", "alone"], Input::Test);
    guest.wait_for("process 1, alone").type_in("word\n").wait_for("got word").type_in("off\n");
    assert_eq!(guest.wait_exit().status, 0, "{}", guest.output());
    let refused = images.run(&["run", "-u", "app", IMAGE, "/sbin/init"]);
    refused.refused(&["user", "process 1", "leave out --user"]);
    images.are_empty();
}

#[test]
fn init_of_an_image_has_an_agent_beside_it_and_takes_a_stop() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    images.run(&["run", "--detach", "--name", "web", IMAGE, "/sbin/init"]).succeeded();
    let arguments = images.run(&["exec", "web", "sh", "-c", "tr '\\0' ' ' </proc/1/cmdline"]);
    assert_eq!(arguments.succeeded().stdout, "/bin/sh /sbin/init ");
    // The shell's parent is the agent.
    images.run(&["exec", "web", "sh", "-c", "kill -9 $PPID"]);
    let agent = || images.run(&["exec", "web", "sh", "-c", "echo $PPID"]).stdout;
    wait_until("the agent starts again", || !agent().is_empty());
    wait_until("its output is kept", || images.names.ok("logs web").contains("process 1, "));
    images.names.ok("fork --quiesce --require-agent --name child web");
    assert_eq!(images.run(&["exec", "child", "hostname"]).succeeded().stdout, "child\n");
    for vm in ["web", "child"] {
        // An emulated processor takes longer than the default allows.
        images.names.ok(&format!("stop --timeout 120 {vm}"));
        let end = &images.names.json(&format!("inspect {vm} --json"))["end"];
        assert_eq!((&end["cause"], &end["status"]), (&"poweroff".into(), &0.into()), "{vm}: {end}");
        assert!(images.names.ok(&format!("logs {vm}")).contains("stopping"), "{vm}");
        images.names.ok(&format!("rm {vm}"));
    }
    images.are_empty();
}

#[test]
fn systemd_runs_beside_the_agent_and_its_services_freeze() {
    needs!(kvm, linux, agent, systemd);
    let images = Images::cold();
    let archive = need::systemd_image().display().to_string();
    // Nothing of the other image is needed.
    std::fs::remove_file(images.data().join("images")).unwrap();
    images.run(&["image", "load", &archive]).succeeded();
    images.run(&["run", "--detach", "--name", "web", "systemd:1", "/sbin/init"]).succeeded();
    let ask = |vm: &str, script: &str| images.run(&["exec", vm, "sh", "-c", script]).stdout.trim().to_owned();
    wait_until("it has started all", || ask("web", "systemctl is-system-running") == "running");
    let id = ask("web", "cat /etc/machine-id");
    assert!(id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
    ask("web", "systemd-run --unit ticks sh -c 'while :; do date +%s.%N >>/ticks; sleep 0.1; done'");
    images.names.ok("fork --quiesce --require-agent --name child web");
    images.names.ok("snapshot create --quiesce web warm");
    images.names.ok("restore --detach --require-agent --name clone warm");
    for vm in ["web", "child", "clone"] {
        let ticks = || ask(vm, "wc -l </ticks").parse::<u64>().unwrap();
        let before = ticks();
        wait_until("its service goes on", || ticks() > before + 5);
        assert_eq!(
            ask(vm, "systemctl is-active ticks; systemctl is-system-running"),
            "active\nrunning",
            "{vm}"
        );
        assert_eq!(ask(vm, "uname -n"), vm);
        assert_eq!(ask(vm, "cat /etc/machine-id") == id, vm == "web", "{vm}");
        // An emulated processor takes longer than the default allows.
        images.names.ok(&format!("stop --timeout 120 {vm}"));
        let end = &images.names.json(&format!("inspect {vm} --json"))["end"];
        assert_eq!((&end["cause"], &end["status"]), (&"poweroff".into(), &0.into()), "{vm}: {end}");
        images.names.ok(&format!("rm {vm}"));
    }
    images.are_empty();
}
