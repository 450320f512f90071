//! Clients of the serial port whose output nobody reads, or which the host has no descriptor for.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use volt_tests::{Input, Names, Terminal, limited, needs, wait_until};

fn process(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

#[test]
fn client_whose_output_stalls_still_obeys_signals() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "babble");
    let mut command = names.command(["attach", "web"]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = command.spawn().unwrap();
    let pipe = client.stdout.take().unwrap();
    let waiting = || rustix::io::ioctl_fionread(&pipe).unwrap();
    wait_until("the pipe is full", || {
        let before = waiting();
        sleep(Duration::from_millis(50));
        before > 0 && waiting() == before
    });
    kill_process(process(client.id()), Signal::TERM).unwrap();
    let ended = limited("the client has ended", || client.wait().unwrap());
    assert_eq!(ended.code(), Some(143));
    assert_eq!(names.state("web").as_deref(), Some("running"));
}

#[test]
fn keys_count_after_a_paste_that_the_guest_does_not_read() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "stuck");
    let (terminal, words) = (Terminal::open(), ["attach", "web"].map(Into::into).to_vec());
    let found = terminal.modes();
    let mut client = names.start(words, Input::Terminal(&terminal));
    wait_until("the terminal is raw", || terminal.modes() != found);
    let paste = "pasted ".repeat(150 << 10);
    limited("the paste is taken", || {
        client.type_in(&paste).type_in("\x01d");
    });
    assert_eq!(client.wait_exit().status, 0);
    assert_eq!(names.state("web").as_deref(), Some("running"));
}

/// Time that the threads of this name have run.
fn time_of(pid: u32, name: &str) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let read = |path: &std::path::Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let tasks: Vec<_> = tasks.filter(|task| read(&task.path(), "comm").trim_end() == name).collect();
    assert!(!tasks.is_empty(), "no thread {name}");
    let nanoseconds =
        |stat: String| stat.split(' ').next().and_then(|word| word.parse().ok()).map(Duration::from_nanos);
    tasks.iter().filter_map(|task| nanoseconds(read(&task.path(), "schedstat"))).sum()
}

#[test]
fn client_that_the_host_has_no_descriptor_for_waits_and_costs_nothing() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let pid = names.pid("web");
    let used = || -> Vec<u64> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let lowest_free = (0..).find(|number| !used().contains(number)).unwrap();
    let before = prlimit(
        Some(process(pid)),
        Resource::Nofile,
        Rlimit { current: Some(lowest_free), maximum: getrlimit(Resource::Nofile).maximum },
    )
    .unwrap();
    let mut client = UnixStream::connect(names.of("web").join("serial.sock")).unwrap();
    sleep(Duration::from_millis(100));
    let started = time_of(pid, "volt-serial");
    sleep(Duration::from_secs(1));
    let took = time_of(pid, "volt-serial").saturating_sub(started);
    assert!(took < Duration::from_millis(150), "{took:?} within a second");
    prlimit(Some(process(pid)), Resource::Nofile, before).unwrap();
    client.write_all(b"typed").unwrap();
    let mut answer = [0; 5];
    limited("the client is served", || client.read_exact(&mut answer).unwrap());
    assert_eq!(&answer, b"typed");
}
