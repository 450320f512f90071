//! The terminal of a VM with a name: it can be left and taken again, and is reset however its client ends.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::Signal;
use volt_tests::names::{named, small};
use volt_tests::{Guest, Input, Names, Outcome, Terminal, needs, wait_until};

/// Boots a guest with a name, and waits until its client has the terminal.
fn on(names: &Names, terminal: &Terminal) -> Guest {
    let found = terminal.modes();
    let mut client = names.start(named("web", "echo"), Input::Terminal(terminal));
    client.wait_for("ready");
    wait_until("the terminal is raw", || terminal.modes() != found);
    client
}

#[test]
fn control_a_d_leaves_the_vm_and_attach_returns_to_it() {
    needs!(kvm);
    let names = Names::new();
    let terminal = Terminal::open();
    let found = terminal.modes();
    let mut client = on(&names, &terminal);
    client.type_in("before").wait_for("before").type_in("\x01d");
    let left = client.wait_exit();
    assert!(left.status == 0 && left.stderr.contains("volt-vmm attach web"), "{left:?}");
    assert_eq!(terminal.modes(), found);
    assert_eq!(names.state("web").as_deref(), Some("running"));
    let second = Terminal::open();
    let mut client = names.start(["attach", "web"].map(Into::into).to_vec(), Input::Terminal(&second));
    wait_until("the terminal is raw", || second.modes() != found);
    client.type_in("after").wait_for("after").type_in("\x03").wait_for("\x03");
    client.type_in("\x01x");
    let ended = client.wait_exit();
    assert!(ended.status == 0 && ended.stderr.contains("VM web has ended"), "{ended:?}");
    assert_eq!(second.modes(), found);
    assert_eq!(names.ok("logs web"), "ready\nbeforeafter\x03");
}

#[test]
fn killed_client_leaves_the_terminal_reset() {
    needs!(kvm);
    let names = Names::new();
    let terminal = Terminal::open();
    let found = terminal.modes();
    let client = on(&names, &terminal);
    client.kill();
    wait_until("the terminal is reset", || terminal.modes() == found);
    assert_eq!(names.state("web").as_deref(), Some("running"));
}

#[test]
fn seventeenth_client_is_refused() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let serial = names.of("web").join("serial.sock");
    let clients: Vec<_> = (0..16).map(|_| UnixStream::connect(&serial).unwrap()).collect();
    names.run("attach web").refused(&["VM web", "16 terminals have it already"]);
    drop(clients);
    assert_eq!(names.state("web").as_deref(), Some("running"));
}

#[test]
fn signals_to_an_attached_client_leave_its_vm() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let terminal = Terminal::open();
        let found = terminal.modes();
        let mut client = names.start(["attach", "web"].map(Into::into).to_vec(), Input::Terminal(&terminal));
        wait_until("the terminal is raw", || terminal.modes() != found);
        client.signal(signal);
        assert_eq!(client.wait_exit().status, 128 + signal.as_raw());
        assert_eq!(terminal.modes(), found, "{signal:?}");
    }
    assert_eq!(names.state("web").as_deref(), Some("running"));
}

#[test]
fn stopped_client_leaves_the_terminal_to_the_shell() {
    needs!(kvm);
    let names = Names::new();
    let terminal = Terminal::open();
    let found = terminal.modes();
    let mut client = on(&names, &terminal);
    client.signal(Signal::TSTP);
    wait_until("the terminal is reset", || terminal.modes() == found);
    client.signal(Signal::CONT);
    wait_until("the terminal is raw again", || terminal.modes() != found);
    client.type_in("on").wait_for("on");
}

#[test]
fn input_of_a_pipe_reaches_the_guest_whole() {
    needs!(kvm);
    let names = Names::new();
    let mut client = names.start(named("web", "echo"), Input::Test);
    client.wait_for("ready\n");
    let text: String = (0..3000).map(|number| format!("{number:05},")).collect();
    client.type_in(&text).wait_for("02999,");
    assert!(client.output().contains(&text), "{}", client.output());
    drop(client);
    wait_until("the log has the whole line", || names.ok("logs web").contains(&text));
}

#[test]
fn several_clients_see_the_same_output() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let attach = || names.start(["attach", "web"].map(Into::into).to_vec(), Input::Test);
    let (mut first, mut second) = (attach(), attach());
    // Both are attached once they see output.
    wait_until("both see output", || {
        first.type_in("x");
        std::thread::sleep(Duration::from_millis(20));
        first.output().contains('x') && second.output().contains('x')
    });
    second.type_in("hello").wait_for("hello");
    first.wait_for("hello");
    names.ok("stop -t 0 web");
    assert_eq!((first.wait_exit().status, second.wait_exit().status), (0, 0));
}

#[test]
fn console_beside_the_serial_port_is_in_the_run_directory() {
    needs!(kvm);
    let names = Names::new();
    let mut words = small("echo");
    words.extend(["-d", "--name", "web", "--console", "--vsock", "cid=3"].map(Into::into));
    Outcome::of_command(&mut names.command(words)).succeeded();
    assert!(names.of("web").join("console.sock").exists() && names.of("web").join("vsock").exists());
    let terminal = Terminal::open();
    let found = terminal.modes();
    let mut client = names.start(["console", "web"].map(Into::into).to_vec(), Input::Terminal(&terminal));
    wait_until("the terminal is raw", || terminal.modes() != found);
    client.type_in("\x01d");
    assert_eq!(client.wait_exit().status, 0);
    names.boot("db", "echo");
    names.run("console db").refused(&["it has no console beside its serial port", "--console"]);
}

#[test]
fn log_follows_until_the_end_and_has_times_and_tails() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let mut follower = names.start(["logs", "-f", "web"].map(Into::into).to_vec(), Input::Null);
    follower.wait_for("ready\n");
    let mut client = names.start(["attach", "web"].map(Into::into).to_vec(), Input::Test);
    client.type_in("one\ntwo\nthree\n").wait_for("three\n");
    follower.wait_for("one\ntwo\nthree\n");
    assert_eq!(names.ok("logs -n 2 web"), "two\nthree\n");
    assert_eq!(names.ok("logs --since 1h web"), "ready\none\ntwo\nthree\n");
    assert_eq!(names.ok("logs --since 100y web"), "ready\none\ntwo\nthree\n");
    assert_eq!(names.ok("logs --since 2100-01-01T00:00:00Z web"), "");
    let times = names.ok("logs -t -n 1 web");
    assert!(times.starts_with("20") && times.ends_with("Z three\n"), "{times}");
    names.ok("kill web");
    let followed = follower.wait_exit();
    assert_eq!((followed.status, followed.stdout.as_str()), (0, "ready\none\ntwo\nthree\n"));
    // No id begins so.
    names.run("logs shop").refused(&["VM shop: no VM has this name"]);
}

#[test]
fn log_is_capped() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "babble");
    let size = || {
        let files = ["serial-0.log", "serial-1.log"].map(|name| names.of("web").join(name));
        files.map(|path| fs::metadata(path).unwrap().len())
    };
    wait_until("the log has begun its second file", || size()[1] > 0);
    assert!(size().iter().all(|bytes| *bytes <= 512 << 10), "{:?}", size());
    names.ok("kill web");
    let kept = names.ok("logs web");
    let line = format!("{}\n", "x".repeat(1023));
    // The first and the last line may be incomplete.
    let lines: Vec<_> = kept.split_inclusive('\n').collect();
    assert!(
        lines.len() > 250 && lines[1..lines.len() - 1].iter().all(|found| *found == line),
        "{}",
        kept.len()
    );
}
