//! Programs of the image that run before a snapshot and after a restore.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use volt_job::quiet::HOOKS_SECONDS;

/// Time between two looks whether a hook has ended.
const STEP: Duration = Duration::from_millis(2);
/// How long a hook may take to end once it is killed.
const TO_END: Duration = Duration::from_secs(1);
/// The path of programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs the programs in a directory, one after another in the order of their names, in a control group if
/// `group` gives one. Returns the failures. All of them share one limit of time.
pub(super) fn run(directory: &str, group: impl FnOnce() -> Option<PathBuf>) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(HOOKS_SECONDS);
    let programs = programs(Path::new(directory));
    let group = if programs.is_empty() { None } else { group() };
    programs.iter().filter_map(|program| run_one(program, group.as_deref(), end).err()).collect()
}

/// The files that may be executed. Names that begin with a dot or end with a tilde are left out, as those of
/// editors.
fn programs(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let executable = |path: PathBuf| {
                fs::metadata(path)
                    .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
            };
            !name.starts_with('.') && !name.ends_with('~') && executable(entry.path())
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

fn run_one(program: &Path, group: Option<&Path>, end: Instant) -> Result<(), String> {
    let shown = program.display();
    let mut command = Command::new(program);
    if let Some(group) = group {
        let entrance = OpenOptions::new().write(true).open(group.join("cgroup.procs"));
        join_at_start(&mut command, entrance.map_err(|error| format!("hook {shown}: {error}"))?);
    }
    command.env_clear().env("PATH", PATH).current_dir("/").stdin(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("hook {shown}: {error}"))?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("hook {shown} failed: {status}")),
            Ok(None) if Instant::now() < end => sleep(STEP),
            Ok(None) => {
                kill(&mut child);
                return Err(format!("hook {shown} was killed: all hooks may take {HOOKS_SECONDS} s"));
            }
            Err(error) => return Err(format!("hook {shown}: {error}")),
        }
    }
}

/// Has the program join a control group by this file.
fn join_at_start(command: &mut Command, entrance: File) {
    // SAFETY: the child makes one system call, on a descriptor that is open in it.
    unsafe {
        command.pre_exec(move || Ok(rustix::io::write(&entrance, b"0").map(drop)?));
    }
}

/// Kills a hook and its children. One that waits for a frozen file system ends after the thaw.
fn kill(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let end = Instant::now() + TO_END;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn programs_run_by_name_and_failures_are_told() {
        let dir = Scratch::new();
        let add = |name: &str, text: &str, mode| {
            let path = dir.path(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let note = |name: &str| format!("#!/bin/sh\necho {name} >>{}/ran\n", dir.path("").display());
        add("20-last", &note("last"), 0o755);
        add("10-first", &note("first"), 0o700);
        add("15-fails", "#!/bin/sh\nexit 3\n", 0o755);
        add("05-data", &note("data"), 0o644);
        add(".hidden", &note("hidden"), 0o755);
        add("30-old~", &note("old"), 0o755);
        let problems = run(dir.path("").to_str().unwrap(), || None);
        assert_eq!(fs::read_to_string(dir.path("ran")).unwrap(), "first\nlast\n");
        assert_eq!(problems.len(), 1);
        assert!(problems[0].ends_with("15-fails failed: exit status: 3"), "{problems:?}");
        assert!(run("/no/such/directory", || unreachable!("there are no programs")).is_empty());
    }

    #[test]
    fn hook_beyond_the_limit_is_killed_with_its_children() {
        let dir = Scratch::new();
        let path = dir.path("slow");
        fs::write(&path, "#!/bin/sh\nsleep 1000 & echo $! >\"$0.pid\"\nwait\n").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let pid_file = dir.path("slow.pid");
        let running = std::thread::spawn({
            let path = path.clone();
            move || run_one(&path, None, Instant::now() + Duration::from_millis(500))
        });
        let problem = running.join().unwrap().unwrap_err();
        assert!(problem.contains("slow was killed"), "{problem}");
        let child = fs::read_to_string(pid_file).unwrap();
        let state = || fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        while state().is_ok_and(|stat| !stat.contains(") Z")) {
            sleep(STEP);
        }
    }
}
