//! Helpers of unit tests: counted skips, waits with a limit and a name, directories, and refused system
//! calls.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Marks the running test as skipped, because the host has a `lack`. Adds it once to the file that
/// `VOLT_SKIPPED` names.
pub fn skip(lack: &str) {
    skip_test(&running(), lack);
}

/// Returns the name of the running test, for threads that it starts. libtest names threads after their tests.
pub fn running() -> String {
    std::thread::current().name().unwrap_or("a unit test").to_owned()
}

/// Marks the test of this name as skipped, like [`skip`].
pub fn skip_test(test: &str, lack: &str) {
    static SKIPPED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("SKIPPED: {test}: {lack}\n");
    print!("{line}");
    let mut skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = std::env::var_os("VOLT_SKIPPED").filter(|_| skipped.insert(test.to_owned())) else {
        return;
    };
    let file = File::options().append(true).create(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

/// The limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true.
///
/// # Panics
/// Panics after [`PATIENCE`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs an act that may block. After [`PATIENCE`] it prints `what` and aborts the process, because no thread
/// can be ended from outside.
pub fn limited<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let (done, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                // libtest would hold back the output of `eprintln!` until the end of the test.
                let _ = writeln!(std::io::stderr(), "waited {PATIENCE:?} in vain until {what}");
                std::process::abort();
            }
        });
        let result = act();
        drop(done);
        result
    })
}

/// Runs the test of this name again in a process of its own, and returns true there. Serves tests of
/// properties of a process, such as its peak memory.
///
/// # Panics
/// Panics if the test fails there.
pub fn alone(test: &str) -> bool {
    const ALONE: &str = "VOLT_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let done = std::process::Command::new(program).args(["--exact", test]).env(ALONE, "1").output().unwrap();
    let output = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && output.contains("1 passed"),
        "{output}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    false
}

/// Returns the peak memory of this process in bytes.
///
/// # Panics
/// Panics if the kernel does not report it.
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line with the peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Makes these system calls fail with `errno`, for this thread and for threads that it starts, until they
/// end.
#[allow(unsafe_code)]
pub fn refuse_calls(calls: &[libc::c_long], errno: libc::c_int) {
    let instruction = |code: u32, (jt, jf), k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let refuse = libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
    let mut filter = vec![instruction(load, (0, 0), 0)]; // the system call's number
    for call in calls {
        filter.extend([instruction(jump, (0, 1), *call as u32), instruction(libc::BPF_RET, (0, 0), refuse)]);
    }
    filter.push(instruction(libc::BPF_RET, (0, 0), libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: prctl(2) copies the program, which is fully initialised. Both settings affect this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Runs a test on a thread of its own, which may call [`refuse_calls`].
pub fn apart(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(running()).spawn(test).unwrap();
    limited("the test on its own thread ends", || thread.join()).unwrap();
}

/// A directory for one test, removed when dropped.
#[derive(Debug)]
pub struct ScratchDir(pub PathBuf);

impl ScratchDir {
    /// Creates an empty directory.
    pub fn new() -> Self {
        // Short, because a socket's path has at most 107 bytes.
        let name = format!("volt-{:.16}", crate::partial::random_hex().unwrap());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Deref for ScratchDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Set for the process in which [`skips_itself_twice`] skips itself.
const SKIPS_ITSELF: &str = "VOLT_SKIPS_ITSELF";

#[test]
fn skipped_test_is_counted_once() {
    let scratch = ScratchDir::new();
    let path = scratch.join("skipped");
    let count = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "testing::skips_itself_twice"])
        .envs([("VOLT_SKIPPED", path.as_os_str()), (SKIPS_ITSELF, path.as_os_str())])
        .status()
        .map(|status| (status.success(), std::fs::read_to_string(&path).unwrap()));
    assert_eq!(count.unwrap(), (true, "SKIPPED: testing::skips_itself_twice: nothing\n".to_owned()));
}

#[test]
fn skips_itself_twice() {
    if std::env::var_os(SKIPS_ITSELF).is_some() {
        skip("nothing");
        skip("nothing");
    }
}
