//! Each filter stops what its kind of thread must never do. A child process installs the filter and makes
//! one call.

use super::*;

type Call = (&'static str, fn() -> libc::c_long);

/// Calls that no thread may make, but for those of [`DUTIES`].
const FORBIDDEN: [Call; 23] = [
    ("execve", || raw(libc::SYS_execve, [c"/bin/true".as_ptr() as i64, 0, 0])),
    ("ptrace", || raw(libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), 1, 0])),
    ("socket of INET", || raw(libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0])),
    ("bind", || raw(libc::SYS_bind, [0, 0, 0])),
    ("mmap of code", || raw(libc::SYS_mmap, [0, 4096, libc::PROT_EXEC.into()])),
    ("mprotect of code", || raw(libc::SYS_mprotect, [0, 4096, libc::PROT_EXEC.into()])),
    ("unlisted ioctl", || raw(libc::SYS_ioctl, [0, libc::TIOCSTI as i64, 0])),
    ("kill", || raw(libc::SYS_kill, [1, 0, 0])),
    ("tgkill of another process", || raw(libc::SYS_tgkill, [1, 1, libc::SIGRTMIN().into()])),
    ("process_vm_writev", || raw(libc::SYS_process_vm_writev, [1, 0, 0])),
    ("process_vm_readv of another process", || raw(libc::SYS_process_vm_readv, [1, 0, 0])),
    ("bpf", || raw(libc::SYS_bpf, [0, 0, 0])),
    ("clone of a process", || raw(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0])),
    ("clone into a namespace", || raw(libc::SYS_clone, [libc::CLONE_NEWUSER.into(), 0, 0])),
    ("unshare", || raw(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0])),
    ("mount", || raw(libc::SYS_mount, [0, 0, 0])),
    ("unlink", || raw(libc::SYS_unlink, [c"/nowhere".as_ptr() as i64, 0, 0])),
    ("io_uring_setup", || raw(libc::SYS_io_uring_setup, [1, 0, 0])),
    ("prctl that makes the process dumpable", || raw(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1, 0])),
    ("keyctl", || raw(libc::SYS_keyctl, [0, 0, 0])),
    ("open", || raw(libc::SYS_open, [c"/etc/shadow".as_ptr() as i64, libc::O_RDONLY.into(), 0])),
    ("socket of UNIX", || raw(libc::SYS_socket, [libc::AF_UNIX.into(), libc::SOCK_STREAM.into(), 0])),
    ("connect", || raw(libc::SYS_connect, [0, 0, 0])),
];

/// The kinds of thread that make some of these calls.
const DUTIES: [(ThreadKind, &[&str]); 3] = [
    (ThreadKind::Resolver, &["socket of INET", "open", "connect"]),
    (ThreadKind::Opener, &["socket of INET", "bind", "unlink", "open", "socket of UNIX", "connect"]),
    (ThreadKind::Worker, &["io_uring_setup"]),
];

/// Calls that every thread makes.
const ALLOWED: [Call; 3] = [
    ("write", || raw(libc::SYS_write, [1, 0, 0])),
    ("mmap of data", || raw(libc::SYS_mmap, [0, 4096, libc::PROT_READ.into()])),
    ("clone3, which fails", || match raw(libc::SYS_clone3, [0, 0, 0]) {
        -1 => 0,
        _ => -1,
    }),
];

fn raw(call: libc::c_long, [a, b, c]: [i64; 3]) -> libc::c_long {
    // SAFETY: no call of the tests writes to memory of the caller, and the process ends after it.
    unsafe { libc::syscall(call, a, b, c, 0, -1, 0) }
}

/// Makes a call in a child process under the filter of `kind`. Returns the signal that ended the child.
fn signal_after(filters: &Filters, kind: ThreadKind, call: fn() -> libc::c_long) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the child makes system calls only, and ends by one: no lock of the heap matters to it.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if filters.install(kind).is_err() {
                libc::_exit(2);
            }
            call();
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert!(!libc::WIFEXITED(status) || libc::WEXITSTATUS(status) == 0, "{kind:?}: no filter");
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

#[test]
fn forbidden_calls_kill_every_kind_of_thread() {
    let filters = Filters::new(OnForbiddenCall::KillProcess, None).unwrap();
    for kind in ThreadKind::ALL {
        let duties = DUTIES.iter().find(|(of, _)| *of == kind).map_or(&[][..], |(_, calls)| calls);
        for (name, call) in FORBIDDEN.iter().filter(|(name, _)| !duties.contains(name)) {
            assert_eq!(signal_after(&filters, kind, *call), Some(libc::SIGSYS), "{kind:?}: {name}");
        }
        for (name, call) in ALLOWED {
            assert_eq!(signal_after(&filters, kind, call), None, "{kind:?}: {name}");
        }
    }
}

/// Names the kind of thread in the process that the next test starts.
const PANICS_AS: &str = "VOLT_PANICS_AS";

#[test]
fn panic_of_any_kind_of_thread_is_told_and_caught() {
    if let Ok(name) = std::env::var(PANICS_AS) {
        let kind = ThreadKind::ALL.into_iter().find(|kind| kind.name() == name).unwrap();
        // SAFETY: the calls take numbers.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        Filters::new(OnForbiddenCall::KillProcess, None).unwrap().install(kind).unwrap();
        let caught = std::panic::catch_unwind(|| panic!("on purpose")).is_err();
        // SAFETY: as above. The harness makes calls that the filter forbids.
        unsafe { libc::_exit(i32::from(!caught)) };
    }
    for kind in ThreadKind::ALL {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([crate::testing::running().as_str(), "--exact", "--nocapture"]);
        // A backtrace opens files.
        let outcome = command.env(PANICS_AS, kind.name()).env("RUST_BACKTRACE", "0").output().unwrap();
        let told = String::from_utf8_lossy(&outcome.stderr);
        assert!(outcome.status.success() && told.contains("on purpose"), "{kind:?}: {outcome:?}");
    }
}

#[test]
fn filters_of_a_file_need_every_kind_and_no_other() {
    let one = |kind: &str| {
        format!(
            r#""{kind}":{{"mismatch_action":"trap","match_action":"allow","filter":[{{"syscall":"read"}}]}}"#
        )
    };
    let all: Vec<_> = ThreadKind::ALL.map(|kind| one(kind.name())).into();
    let file = |entries: &[String]| format!("{{{}}}", entries.join(","));
    let read = |text: &str| Filters::new(OnForbiddenCall::Signal, Some(text)).map(|_| ());
    read(&file(&all)).unwrap();
    let error = read(&file(&all[1..])).unwrap_err().to_string();
    assert_eq!(error, "seccomp_filter: there is no filter for threads of kind vcpu");
    let error = read(&file(&[&all[..], &[one("vmm")]].concat())).unwrap_err().to_string();
    assert_eq!(error, "seccomp_filter: vmm is not a kind of thread");
    assert!(read("not JSON").unwrap_err().to_string().starts_with("seccomp_filter: "));
}
