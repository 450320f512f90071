//! The library of sandboxes, with the real program and guests.

use std::time::Duration;

use volt_sandbox::{Builder, Error, Event, FileKind, Sandbox, tokio as asynchronous};
use volt_tests::program::binary;
use volt_tests::{need, needs, wait_until};

use super::runs::{IMAGE, Images};

#[path = "../../../api/sandbox/examples/python.rs"]
#[allow(dead_code)]
mod example;

/// Makes Python of the volume that of the image. It has few modules, so it starts without the usual ones.
const LINKS: &str = "for part in usr lib lib64; do ln -s /python/$part /$part; done; mkdir -p /tmp
    chmod 755 /bin/python3";
const PYTHON: &str = "#!/bin/sh\nexec /usr/bin/python3 -I -S \"$@\"\n";

/// A builder whose VMs are in the directories of the test.
fn builder<Face>(images: &Images, builder: Builder<Face>) -> Builder<Face> {
    let guest = images.names.scratch().path("guest");
    let builder = builder.program(binary()).run_dir(images.names.root()).data_dir(images.data());
    builder.guest_files(guest).image(IMAGE)
}

fn start(images: &Images) -> Sandbox {
    builder(images, Sandbox::builder()).start().unwrap()
}

fn sh(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

#[test]
fn commands_of_a_sandbox_have_streams_settings_status_and_limit() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let builder = builder(&images, Sandbox::builder()).name("web").env("B", "builder");
    let sandbox = builder.start().unwrap();
    let exec = sandbox.exec(sh("echo $FROM $B $C $HOSTNAME; pwd; id -u; echo e >&2; exit 7"));
    let output = exec.env("C", "c d").cwd("/opaque").user("app").output().unwrap();
    assert_eq!(output.status, 7, "{output:?}");
    assert_eq!(output.stdout, b"image builder c d web\n/opaque\n1000\n");
    assert_eq!(output.stderr, b"e\n");

    // More than all buffers on the way, in both directions at once.
    let input: Vec<u8> = (0..3_000_000_u32).map(|number| (number >> 3) as u8).collect();
    let output = sandbox.exec(["cat"]).stdin(input.clone()).output().unwrap();
    assert!(output.status == 0 && output.stdout == input, "{} bytes", output.stdout.len());
    let unread = sandbox.exec(sh("exec <&-; exit 3")).stdin(input).output().unwrap();
    assert_eq!(unread.status, 3);
    assert_eq!(sandbox.exec(sh("wc -c")).output().unwrap().text(), "0", "no input is its end");

    let error = sandbox.exec(["nonsense"]).output().unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("nonsense"), "{error}");
    let limited = sandbox.exec(sh("echo $$ >/pid; sleep 1000 & wait")).timeout(Duration::from_secs(3));
    let error = limited.output().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let is_gone = "kill -0 $(cat /pid) 2>/dev/null || echo gone";
    wait_until("the command is killed", || sandbox.exec(sh(is_gone)).output().unwrap().text() == "gone");

    let mut process = sandbox.exec(sh("echo one; read line; echo two")).stdin("\n").spawn().unwrap();
    let first = process.next_event().unwrap();
    let Some(Event::Stdout(mut streamed)) = first else { panic!("{first:?}") };
    // Its input is there from the start, so that both lines may come as one event.
    assert!(streamed.starts_with(b"one\n"), "{streamed:?}");
    streamed.extend(process.output().unwrap().stdout);
    assert_eq!(streamed, b"one\ntwo\n");
    let process = sandbox.exec(["sleep", "1000"]).spawn().unwrap();
    process.kill().unwrap();
    assert_eq!(process.wait().unwrap(), 137);
    sandbox.kill().unwrap();
    images.are_empty();
}

#[test]
fn files_of_a_sandbox_are_bytes() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let sandbox = start(&images);
    let files = sandbox.files();
    let content: Vec<u8> = (0..5_000_000_u32).map(|number| (number ^ (number >> 8)) as u8).collect();
    files.write("/new/deep/a b&c", &content).unwrap();
    assert!(files.read("/new/deep/a b&c").unwrap() == content);
    let length = sandbox.exec(["stat", "-c", "%s %u", "/new/deep/a b&c"]).output().unwrap();
    assert_eq!(length.text(), "5000000 0");
    files.write("/new/empty", "").unwrap();
    assert_eq!(files.read("/new/empty").unwrap(), b"");
    assert!(!files.read("/proc/version").unwrap().is_empty(), "its length is 0 for stat");
    files.make_dir("/new/made").unwrap();
    assert!(files.make_dir("/new/made").unwrap_err().to_string().contains("exists"));
    let found = files.list("/new").unwrap();
    let found: Vec<_> = found.iter().map(|entry| (entry.name.as_str(), entry.kind, entry.size)).collect();
    let kinds = [found[0].1, found[1].1, found[2].1];
    assert_eq!(found.iter().map(|entry| entry.0).collect::<Vec<_>>(), ["deep", "empty", "made"]);
    assert_eq!(kinds, [FileKind::Directory, FileKind::File, FileKind::Directory]);
    assert_eq!(found[1].2, 0);
    assert!(files.exists("/new/made").unwrap());
    files.remove("/new").unwrap();
    files.remove("/new").unwrap();
    assert!(!files.exists("/new/made").unwrap());
    assert!(files.read("/new/empty").unwrap_err().is_not_found());
    assert!(files.remove("/").unwrap_err().to_string().contains("root directory"));
    drop(sandbox);
    images.are_empty();
}

#[test]
fn forks_go_on_apart_and_all_vms_go_with_their_sandboxes() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let parent = start(&images);
    parent.files().write("/shared", "parent").unwrap();
    let children = parent.fork(3).unwrap();
    for (number, child) in children.iter().enumerate() {
        assert_eq!(child.name(), format!("{}-{}", parent.name(), number + 1));
        child.files().write("/shared", number.to_string()).unwrap();
    }
    let read = |sandbox: &Sandbox| sandbox.exec(sh("cat /shared; echo; hostname")).output().unwrap().text();
    for (number, child) in children.iter().enumerate() {
        assert_eq!(read(child), format!("{number}\n{}", child.name()));
    }
    assert_eq!(read(&parent), format!("parent\n{}", parent.name()));
    // A fork outlives its parent, and a VM that is left its sandbox.
    drop(parent);
    let mut children = children.into_iter();
    let left = children.next().unwrap().leave();
    drop(children);
    let connect = || builder(&images, Sandbox::builder()).connect(&left);
    let found = connect().unwrap();
    assert_eq!(read(&found), format!("0\n{left}"));
    drop(found);
    connect().unwrap().kill().unwrap();
    let error = connect().unwrap_err();
    assert!(error.to_string().contains(&left), "{error}");
    images.are_empty();
}

#[test]
fn sandbox_that_cannot_start_leaves_nothing_and_says_why() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let begin = || builder(&images, Sandbox::builder());
    for (builder, words) in [
        (begin().command(["nonsense"]), "nonsense"),
        (begin().memory("1"), "memory"),
        (begin().name("a/b"), "only letters"),
    ] {
        let error = builder.start().unwrap_err();
        assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains(words), "{error}");
    }
    images.are_empty();
}

#[test]
fn example_asks_each_fork_of_a_warm_python() {
    needs!(kvm, linux, agent, python);
    let images = Images::new();
    let volume = format!("{}:/python:ro", need::python_tree().display());
    let builder = builder(&images, Sandbox::builder()).memory("160M").volume(volume);
    let parent = builder.env("PATH", "/bin:/usr/bin").start().unwrap();
    parent.files().write("/bin/python3", PYTHON).unwrap();
    assert_eq!(parent.exec(sh(LINKS)).output().unwrap().status, 0);
    let answers = example::answers(&parent, 8).unwrap();
    assert_eq!(answers, ["1", "8", "28", "56", "70", "56", "28", "8"]);
    drop(parent);
    images.are_empty();
}

#[test]
fn async_sandbox_runs_commands_at_once_and_goes_with_its_runtime() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = builder(&images, asynchronous::Sandbox::builder()).start().await.unwrap();
        sandbox.files().write("/a", "content").await.unwrap();
        let (one, other) = tokio::join!(
            sandbox.exec(["cat", "/a"]).output(),
            sandbox.exec(sh("cat; exit 4")).stdin("input").output(),
        );
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.text(), other.text(), other.status), ("content".into(), "input".into(), 4));
        let children = sandbox.fork(2).await.unwrap();
        let mut process = children[1].exec(sh("echo started; sleep 1000")).spawn().await.unwrap();
        assert_eq!(process.next_event().await.unwrap(), Some(Event::Stdout(b"started\n".to_vec())));
        process.kill().await.unwrap();
        assert_eq!(process.wait().await.unwrap(), 137);
    });
    drop(runtime);
    images.are_empty();
}
