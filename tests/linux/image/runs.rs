//! `volt-vmm run IMAGE`, and the commands on such a VM.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::io::ioctl_fionread;
use rustix::process::Signal;
use serde_json::Value;
use volt_image::digest;
use volt_tests::{Guest, Input, Names, Outcome, Terminal, needs, output, rest, wait_until};

use super::layers::{self, large};

/// The name of the image.
pub(super) const IMAGE: &str = "test:1";

/// Directories of a test's own, with the image in them.
pub(super) struct Images {
    pub(super) names: Names,
}

impl Images {
    /// Shares warm snapshots with other tests.
    pub(super) fn new() -> Self {
        let images = Self::cold();
        symlink(layers::warm(), images.data().join("warm")).unwrap();
        images
    }

    /// Has no warm snapshots so far.
    pub(super) fn cold() -> Self {
        let names = Names::new();
        let data = names.scratch().path("data/volt-vmm");
        fs::create_dir(&data).unwrap();
        symlink(layers::directory(), data.join("images")).unwrap();
        let guest = names.scratch().path("guest");
        fs::create_dir(&guest).unwrap();
        for (name, variable) in [("kernel", "VOLT_KERNEL"), ("agent.cpio", "VOLT_AGENT_INITRD")] {
            symlink(std::env::var_os(variable).unwrap(), guest.join(name)).unwrap();
        }
        Self { names }
    }

    /// The directory of the user's data.
    pub(super) fn data(&self) -> PathBuf {
        self.names.scratch().path("data/volt-vmm")
    }

    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.names.command(words);
        command.env("VOLT_GUEST", self.names.scratch().path("guest"));
        command
    }

    pub(super) fn run(&self, words: &[&str]) -> Outcome {
        Outcome::of_command(&mut self.command(words))
    }

    /// The report of a VM about memory that was read ahead of its guest.
    pub(super) fn mapped_ahead(&self, name: &str) -> Value {
        rest::mapped_ahead(&self.names.of(name).join("api.sock"))
    }

    /// Runs a script as the main process of a new VM, with options.
    fn script(&self, options: &[&str], script: &str) -> Outcome {
        self.run(&[&["run", "--rm"], options, &[IMAGE, "sh", "-c", script]].concat())
    }

    /// Runs a script in a VM.
    fn exec(&self, options: &[&str], script: &str) -> Outcome {
        self.run(&[&["exec"], options, &["web", "sh", "-c", script]].concat())
    }

    /// Starts a command with input from a file.
    pub(super) fn start(&self, words: &[&str], input: Input<'_>) -> Guest {
        let guest = ("VOLT_GUEST", self.names.scratch().path("guest").into());
        self.names.start_with(words.iter().map(Into::into).collect(), input, &[guest])
    }

    /// Starts a VM `web` in the background.
    fn detach(&self, script: &str) {
        let outcome = self.run(&["run", "--detach", "--name", "web", IMAGE, "sh", "-c", script]);
        assert_eq!((outcome.status, &*outcome.stdout), (0, "web\n"), "{outcome:?}");
    }

    /// Checks that no VM has left a file.
    pub(super) fn are_empty(&self) {
        let left = |path: &str| {
            let entries = fs::read_dir(self.names.scratch().path(path)).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.path())
                .filter(|path| !path.ends_with(".lock"))
                .collect::<Vec<PathBuf>>()
        };
        // The remover ends after the client, perhaps.
        wait_until("the files are removed", || left("run/volt-vmm").is_empty());
        assert_eq!(left("data/volt-vmm/vms"), Vec::<PathBuf>::new());
    }
}

#[test]
fn run_passes_streams_settings_and_status() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let script = "echo $FROM $A $B; pwd; id -u; id -g; echo error >&2; exit 7";
    let options = ["-e", "A=a=b", "--env", "B=b", "-w", "/opaque", "-u", "app:44"];
    let outcome = images.script(&options, script);
    assert_eq!(outcome.status, 7, "{outcome:?}");
    assert_eq!(outcome.stdout, "image a=b b\n/opaque\n1000\n44\n");
    assert_eq!(outcome.messages(), "error\n");
    images.are_empty();
}

#[test]
fn run_without_a_command_runs_that_of_the_image_and_keeps_the_end() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let outcome = images.run(&["run", "--name", "web", "--upper", "memory", IMAGE]);
    assert_eq!((outcome.status, &*outcome.stdout), (0, "default\n"), "{outcome:?}");
    let found = images.names.json("inspect web --json");
    assert_eq!(found["end"]["cause"], "exited", "{found}");
    assert_eq!(images.names.ok("logs web"), "default\n");
    images.names.ok("rm web");
    images.are_empty();
}

#[test]
fn input_reaches_the_main_process_and_ends() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let input = images.names.scratch().path("input");
    // More than all buffers on the way.
    fs::write(&input, &large()[..600_000]).unwrap();
    let words = ["run", "--rm", "-i", IMAGE, "sh", "-c", "wc -c; exit 3"];
    let outcome = images.start(&words, Input::File(&input)).wait_exit();
    assert_eq!((outcome.status, &*outcome.stdout), (3, "600000\n"), "{}", outcome.stderr);
}

#[test]
fn program_that_cannot_start_ends_as_in_a_shell() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    for (words, status, told) in [
        (&[IMAGE, "nonsense"][..], 127, "cannot start nonsense: No such file"),
        (&["--entrypoint", "/not-executable", IMAGE], 126, "cannot start /not-executable: Permission denied"),
        (&["--user", "nobody-here", IMAGE], 125, "nobody-here"),
    ] {
        let outcome = images.run(&[&["run", "--rm"], words].concat());
        assert_eq!(outcome.status, status, "{outcome:?}");
        assert!(outcome.stderr.contains(told) && outcome.stdout.is_empty(), "{outcome:?}");
    }
    images.are_empty();
}

#[test]
fn signal_of_a_foreground_client_reaches_the_main_process() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let script = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let mut client = images.start(&["run", "--rm", IMAGE, "sh", "-c", script], Input::Null);
    client.wait_for("ready\n");
    client.signal(Signal::TERM);
    client.wait_for("bye\n");
    assert_eq!(client.wait_exit().status, 5);
    images.are_empty();
}

#[test]
fn commands_run_beside_the_main_process_of_a_detached_vm() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    images.detach("echo started; trap 'echo bye; exit 4' TERM; while :; do sleep 0.1; done");
    let outcome = images.exec(&["-e", "A=1"], "echo $FROM $A; pwd; echo e >&2; exit 9");
    assert_eq!((outcome.status, &*outcome.stdout, &*outcome.stderr), (9, "image 1\n/directory\n", "e\n"));
    assert_eq!(images.exec(&["-u", "1:2", "-w", "/etc"], "id -u; id -g; pwd").stdout, "1\n2\n/etc\n");
    assert_eq!(images.exec(&[], "kill -9 $$").status, 137);
    assert_eq!(images.exec(&["-t"], "[ -t 1 ] && echo $TERM $HOSTNAME").stdout, "xterm web\r\n");
    assert_eq!(images.exec(&["-u", "nobody-here"], "true").status, 125);
    for (program, status) in [("nonsense", 127), ("/not-executable", 126)] {
        let outcome = images.run(&["exec", "web", program]);
        assert_eq!(outcome.status, status, "{outcome:?}");
        assert!(outcome.stderr.contains(program), "{outcome:?}");
    }
    let input = images.names.scratch().path("input");
    fs::write(&input, large()).unwrap();
    let outcome = images.start(&["exec", "-i", "web", "sha256sum"], Input::File(&input)).wait_exit();
    assert_eq!(outcome.stdout, format!("{}  -\n", digest::of(&large()).digest()), "{outcome:?}");
    assert!(output(&mut images.command(&["exec", "web", "cat", "/large"])).stdout == large());
    // The VM holds its files, and no lock of the whole store.
    images.run(&["image", "prune"]).succeeded();
    let mut attached = images.start(&["attach", "web"], Input::Null);
    // It attaches in its own time.
    images.exec(&[], "sleep 0.5");
    images.names.ok("stop web");
    let outcome = attached.wait_exit();
    assert!(outcome.status == 4 && outcome.stderr.contains("VM web has ended"), "{outcome:?}");
    assert_eq!(images.names.ok("logs web"), "started\nbye\n");
    images.names.run("exec web true").refused(&["VM web: it has ended"]);
    images.names.ok("rm web");
    images.are_empty();
}

#[test]
fn foreground_client_goes_on_after_the_end_of_the_agent() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let script = "echo one; while [ ! -e /go ]; do sleep 0.1; done; echo two; exit 3";
    let words = ["run", "--rm", "--name", "web", IMAGE, "sh", "-c", script];
    let mut client = images.start(&words, Input::Null);
    client.wait_for("one\n");
    // Its own connection breaks with the agent.
    let kill = "for p in /proc/[0-9]*; do
                    case $(tr '\\0' ' ' <$p/cmdline) in volt-agent*) kill -9 ${p#/proc/} ;; esac
                done";
    assert_ne!(images.exec(&[], kill).status, 0);
    wait_until("the agent answers again", || images.exec(&[], ": >/go").status == 0);
    client.wait_for("two\n");
    let outcome = client.wait_exit();
    assert_eq!((outcome.status, &*outcome.stdout), (3, "one\ntwo\n"), "{}", outcome.stderr);
    images.are_empty();
}

#[test]
fn output_is_whole_though_its_reader_stands_still_beyond_the_end() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let words = ["run", "--name", "web", IMAGE, "busybox", "seq", "100000"];
    let mut command = images.command(&words);
    let mut client = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let unread = client.stdout.take().unwrap();
    wait_until("the VM has ended", || {
        let seen = images.run(&["inspect", "web", "--json"]);
        seen.status == 0 && !serde_json::from_str::<Value>(&seen.stdout).unwrap()["end"].is_null()
    });
    assert!(ioctl_fionread(&unread).unwrap() > 15 * 4096, "the pipe is full");
    let lines: Vec<_> = BufReader::new(unread).lines().map(Result::unwrap).collect();
    assert!(
        lines.iter().map(String::as_str).eq((1..=100_000).map(|line| line.to_string())),
        "{}",
        lines.len()
    );
    assert!(client.wait().unwrap().success());
    images.names.ok("rm web");
    images.are_empty();
}

#[test]
fn terminal_of_the_client_is_that_of_the_main_process() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let terminal = Terminal::open();
    let words = ["run", "-it", "--name", "web", IMAGE, "sh"];
    let mut client = images.start(&words, Input::Terminal(&terminal));
    client.wait_for("# ");
    client.type_in("tty_is=$( [ -t 0 ] && echo terminal ); echo $tty_is of $TERM\r");
    client.wait_for("terminal of xterm\r");
    // Ctrl-P Ctrl-Q leaves the VM, and attach comes back to it.
    client.type_in("\x10\x11");
    assert_eq!(client.wait_exit().status, 0);
    let mut client = images.start(&["attach", "web"], Input::Terminal(&terminal));
    client.type_in("exit 6\r");
    assert_eq!(client.wait_exit().status, 6);
    images.names.ok("rm web");
    images.are_empty();
}

#[test]
fn files_are_copied_both_ways() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    images.detach("trap '' TERM; sleep 1000");
    let tree = images.names.scratch().path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse.write_all_at(b"end", (8 << 20) - 3).unwrap();
    fs::write(tree.join("sub/large"), large()).unwrap();
    fs::set_permissions(tree.join("sub/large"), Permissions::from_mode(0o640)).unwrap();
    symlink("sub/large", tree.join("link")).unwrap();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();

    // A directory that exists gets the tree below it, and another name is the tree itself.
    images.run(&["cp", &path(&tree), "web:/etc"]).succeeded();
    images.run(&["cp", &path(&tree), "web:/new"]).succeeded();
    let script = "cd /etc/tree; stat -c '%a %u %s' sub/large; cat link | sha256sum; cd /new; \
                  stat -c '%s %b' sparse; sha256sum <sub/large";
    let seen = images.exec(&[], script).stdout;
    let lines: Vec<_> = seen.lines().collect();
    assert_eq!((lines[0], lines[1]), (format!("640 0 {}", large().len()).as_str(), lines[3]), "{seen}");
    let blocks: u64 = lines[2].strip_prefix("8388608 ").unwrap().parse().unwrap();
    assert!(blocks < 100, "{seen}");

    let back = images.names.scratch().path("back");
    images.run(&["cp", "web:/new", &path(&back)]).succeeded();
    assert_eq!(fs::read(back.join("sub/large")).unwrap(), large());
    assert_eq!(fs::read_link(back.join("link")).unwrap(), PathBuf::from("sub/large"));
    assert_eq!(fs::metadata(back.join("sub/large")).unwrap().mode() & 0o777, 0o640);
    assert!(fs::metadata(back.join("sparse")).unwrap().blocks() < 100);
    images.run(&["cp", "--archive", "web:/owned", &path(&back)]).succeeded();
    let owned = fs::metadata(back.join("owned")).unwrap();
    assert_eq!((owned.uid(), owned.gid()), (1234, 70_000));
    images.run(&["cp", "web:/new/.", &path(&back.join("sub"))]).succeeded();
    assert!(back.join("sub/sub/large").exists());

    images.run(&["cp", "web:/missing", &path(&back)]).refused(&["VM web", "/missing"]);
    images.run(&["cp", "/missing", "web:/"]).refused(&["cannot copy /missing"]);
    images.run(&["cp", &path(&tree), "web:/owned"]).refused(&["/owned is no directory"]);
    // The main process ignores its stop signal, and the guest unmounts its disks after its end.
    images.run(&["stop", "--timeout", "1", "web"]).succeeded();
    let found = images.names.json("inspect web --json");
    assert_eq!((&found["end"]["status"], &found["end"]["cause"]), (&137.into(), &"exited".into()), "{found}");
    images.run(&["rm", "web"]).succeeded();
    images.are_empty();
}

#[test]
fn end_of_a_vm_before_its_agent_answers_is_told() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let cmdline = "console=ttyS0 reboot=k panic=-1 quiet rdinit=/missing root=/missing";
    let outcome = images.run(&["run", "--rm", "--cmdline", cmdline, IMAGE]);
    assert_ne!(outcome.status, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("ended before its agent answered"), "{outcome:?}");
    let outcome = images.run(&["image", "warm", "--cmdline", cmdline, IMAGE]);
    assert_ne!(outcome.status, 0, "{outcome:?}");
    images.are_empty();
}

#[test]
fn image_without_its_parts_is_refused() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    images.run(&["run", "--pull", "never", "other:1"]).refused(&["other:1"]);
    let mut command = images.command(&["run", IMAGE]);
    command.env("VOLT_GUEST", "/missing");
    Outcome::of_command(&mut command).refused(&["/missing/kernel", "scripts/quickstart.sh", "--kernel"]);
    images.run(&["run", "-it", IMAGE]).refused(&["standard input is no terminal"]);
    images.run(&["run", "--disk-size", "1M", IMAGE]).refused(&["8 MiB"]);
    images.are_empty();
}
