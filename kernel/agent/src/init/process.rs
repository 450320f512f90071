//! The start of the main process.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Gid, Pid, Uid, chdir, ioctl_tiocsctty, setsid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use volt_job::Ended;
use volt_job::ended::{NOT_EXECUTABLE, NOT_FOUND, NOT_PREPARED};
use volt_job::job::Process;

use super::{cgroup, names, system};
use crate::users::{self, User};

/// The search path of a program whose environment names none.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts the process in its control group. `redirect` connects its input and output, which its user owns.
pub(super) fn start(
    process: &Process,
    hostname: Option<&str>,
    redirect: impl FnOnce(&mut Command, u32) -> Result<(), String>,
) -> Result<Pid, Ended> {
    let unprepared = |why| Ended::not_started(NOT_PREPARED, why);
    let user = users::find_spec(&process.user).map_err(unprepared)?;
    // Images without a working directory have an empty one.
    let cwd = if process.cwd.is_empty() { "/" } else { &process.cwd }.to_owned();
    fs::create_dir_all(&cwd)
        .map_err(|error| unprepared(format!("cannot make the working directory {cwd}: {error}")))?;
    let mut command = command(process, &user, hostname)?;
    redirect(&mut command, user.uid).map_err(unprepared)?;
    let (entrance, terminal) = (cgroup::entrance(cgroup::MAIN), process.terminal);
    let groups: Vec<_> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (user, group) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    system::before_exec(&mut command, move || {
        setsid()?;
        if let Some(entrance) = &entrance {
            rustix::io::write(entrance, b"0")?;
        }
        if terminal {
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        set_thread_groups(&groups)?;
        set_thread_gid(group)?;
        set_thread_uid(user)?;
        // As the user, since the directory may be closed to others, even to root over a network.
        Ok(chdir(cwd.as_str())?)
    });
    let child = command.spawn().map_err(|error| not_started(&process.argv[0], &error))?;
    Ok(Pid::from_child(&child))
}

/// Replaces process 1 by an init. Returns only if that failed.
pub(super) fn become_init(process: &Process, hostname: Option<&str>) -> Ended {
    match command(process, &User::root(), hostname) {
        Ok(mut command) => {
            // It can start without.
            let _ = names::give_machine_id();
            system::before_exec(&mut command, || Ok(()));
            not_started(&process.argv[0], &command.exec())
        }
        Err(ended) => ended,
    }
}

/// The program with its arguments and environment.
fn command(process: &Process, user: &User, hostname: Option<&str>) -> Result<Command, Ended> {
    let Some((program, arguments)) = process.argv.split_first() else {
        return Err(Ended::not_started(NOT_FOUND, "process.argv is empty; name a program".to_owned()));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment(process, user, hostname));
    Ok(command)
}

fn environment(process: &Process, user: &User, hostname: Option<&str>) -> BTreeMap<String, String> {
    let home = user.home.to_string_lossy().into_owned();
    let mut all = BTreeMap::from([("PATH".to_owned(), PATH.to_owned()), ("HOME".to_owned(), home)]);
    all.extend(hostname.map(|name| ("HOSTNAME".to_owned(), name.to_owned())));
    if process.terminal {
        all.insert("TERM".to_owned(), "xterm".to_owned());
    }
    // Docker takes an entry without a value from its own environment. Process 1 has none to give.
    let given = process.env.iter().filter_map(|entry| entry.split_once('='));
    all.extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
    all
}

fn not_started(program: &str, error: &Error) -> Ended {
    let status = match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    };
    Ended::not_started(status, format!("cannot start {program}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User { home: "/home/u".into(), ..User::root() }
    }

    #[test]
    fn environment_keeps_given_values_and_adds_missing_ones() {
        let env = ["HOME=/x", "A=b=c", "EMPTY=", "ALONE"].map(str::to_owned).to_vec();
        let process = Process { env, terminal: true, ..Process::new(["sh"]) };
        let expected = [
            ("A", "b=c"),
            ("EMPTY", ""),
            ("HOME", "/x"),
            ("HOSTNAME", "web"),
            ("PATH", PATH),
            ("TERM", "xterm"),
        ];
        let found = environment(&process, &user(), Some("web"));
        assert!(found.iter().map(|(name, value)| (name.as_str(), value.as_str())).eq(expected), "{found:?}");
        let found = environment(&Process::new(["sh"]), &user(), None);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["HOME", "PATH"]);
        assert_eq!(found["HOME"], "/home/u");
    }

    #[test]
    fn status_tells_a_missing_program_from_one_that_may_not_run() {
        for (error, status) in [(libc::ENOENT, 127), (libc::EACCES, 126), (libc::ENOEXEC, 126)] {
            assert_eq!(not_started("x", &Error::from_raw_os_error(error)).status, status);
        }
        let empty = command(&Process::new::<&str>([]), &user(), None).map(|_| ()).unwrap_err();
        assert_eq!(empty.status, 127);
    }
}
