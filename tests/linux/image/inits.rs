//! Images whose command is an init: it is process 1, and its streams are those of the serial port.

use volt_tests::{Input, needs, wait_until};

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
    wait_until("its output is kept", || images.names.ok("logs web").contains("process 1, "));
    images.names.ok("fork --quiesce --require-agent --name child web");
    assert_eq!(images.run(&["exec", "child", "hostname"]).succeeded().stdout, "child\n");
    for vm in ["web", "child"] {
        images.names.ok(&format!("stop {vm}"));
        let end = &images.names.json(&format!("inspect {vm} --json"))["end"];
        assert_eq!((&end["cause"], &end["status"]), (&"poweroff".into(), &0.into()), "{vm}: {end}");
        assert!(images.names.ok(&format!("logs {vm}")).contains("stopping"), "{vm}");
        images.names.ok(&format!("rm {vm}"));
    }
    images.are_empty();
}
