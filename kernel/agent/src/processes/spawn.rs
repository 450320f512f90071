//! Starts commands.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Gid, Pid, PidfdFlags, Uid, ioctl_tiocsctty, pidfd_open, setsid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use tokio::io::unix::AsyncFd;

use super::attach::attach;
use super::group::Group;
use super::input::window;
use super::process::Process;
use super::pump::pump_all;
use super::supervise::supervise;
use super::table::Table;
use crate::connect::{Code, RpcError};
use crate::descriptor::register;
use crate::filesystem::path;
use crate::limits;
use crate::messages::process::{PtySize, StartRequest};
use crate::streams;
use crate::users::User;

/// The path of programs, if the agent's environment names none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The size of a terminal without one.
const SIZE: PtySize = PtySize { cols: 80, rows: 24 };

/// Starts a command, and its tasks.
pub fn start(
    commands: &Rc<Table>,
    user: &User,
    request: StartRequest,
    timeout: Option<Duration>,
) -> Result<Rc<Process>, RpcError> {
    let config = request.process.unwrap_or_default();
    if config.cmd.is_empty() {
        return Err(RpcError::new(Code::InvalidArgument, "process.cmd is empty"));
    }
    let directory = directory(commands, user, config.cwd.as_deref())?;
    let failed = |error: io::Error| RpcError::of_file("prepare the command's streams", &error);
    let (ours, theirs) = match &request.pty {
        Some(pty) => streams::terminal(window(pty.size.as_ref().unwrap_or(&SIZE)), user.uid),
        None => streams::pipes(request.stdin.unwrap_or(true), user.uid),
    }
    .map_err(failed)?;
    let (input, outputs) = attach(ours, None).map_err(failed)?;
    let mut command = Command::new(&config.cmd);
    command.args(&config.args).current_dir(&directory);
    command.env_clear().envs(environment(commands, user, &config.envs));
    theirs.give(&mut command);
    let group_failed = |error: io::Error| RpcError::of_file("make the command's control group", &error);
    let group = commands.groups.make().map_err(group_failed)?;
    let entrance = group.as_ref().map(Group::entrance).transpose().map_err(group_failed)?;
    become_user(&mut command, user, request.pty.is_some(), entrance);
    let started = command.spawn();
    // The command holds the other side of each stream, which must close when the process ends.
    drop(command);
    let mut child = started.map_err(|error| {
        group.iter().for_each(|group| commands.groups.remove(group));
        not_started(&config.cmd, &error)
    })?;
    let (pid, handle) = watch(&child).map_err(|error| {
        // Nothing would notice its end.
        let _ = child.kill().and_then(|()| child.wait());
        RpcError::of_file("watch the command", &error)
    })?;
    let process = Process::in_group(pid, config, request.tag, input, group);
    commands.add(&process);
    let drained = pump_all(&process, outputs);
    let supervisor = supervise(Rc::clone(commands), Rc::clone(&process), child, handle, timeout, drained);
    tokio::task::spawn_local(supervisor);
    Ok(process)
}

/// Codes as shells have them: 127 for a program that does not exist, 126 for one that may not be executed.
fn not_started(program: &str, error: &io::Error) -> RpcError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => Code::PermissionDenied,
        _ => Code::InvalidArgument,
    };
    RpcError::new(code, format!("cannot start {program}: {error}"))
}

fn watch(child: &Child) -> io::Result<(Pid, AsyncFd<OwnedFd>)> {
    let pid = Pid::from_child(child);
    Ok((pid, register(pidfd_open(pid, PidfdFlags::NONBLOCK)?)?))
}

fn directory(commands: &Table, user: &User, asked: Option<&str>) -> Result<PathBuf, RpcError> {
    let workdir = commands.setup.settings.borrow().workdir.clone();
    let directory = match asked.filter(|path| !path.is_empty()).or(workdir.as_deref()) {
        Some(asked) => path::resolve(user, asked)?,
        None if user.home.is_dir() => user.home.clone(),
        None => PathBuf::from("/"),
    };
    if directory.is_dir() {
        return Ok(directory);
    }
    let message = format!("the working directory {} does not exist", directory.display());
    Err(RpcError::new(Code::InvalidArgument, message))
}

/// Variables of a command. Later ones win: defaults, those of `/init`, the request's.
fn environment(commands: &Table, user: &User, asked: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let path = std::env::var("PATH").unwrap_or_else(|_| PATH.to_owned());
    let home = user.home.to_string_lossy();
    let defaults = [
        ("PATH", path.as_str()),
        ("HOME", &home),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("SHELL", &user.shell),
    ];
    let mut all: BTreeMap<_, _> =
        defaults.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    all.extend(commands.setup.settings.borrow().envs.clone());
    all.extend(asked.clone());
    // The kernel's form has no place for these.
    all.retain(|name, value| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
    all
}

/// Gives the command its control group, its own session, its terminal, and the user's ids.
fn become_user(command: &mut Command, user: &User, has_terminal: bool, entrance: Option<File>) {
    let groups: Vec<_> = user.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // An agent without the right to change ids, in a test, still starts commands as itself.
    let as_itself = rustix::process::geteuid() == uid && !rustix::process::geteuid().is_root();
    let prepare = move || -> io::Result<()> {
        if let Some(entrance) = &entrance {
            rustix::io::write(entrance, b"0")?;
        }
        limits::restore()?;
        setsid()?;
        if has_terminal {
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        if !as_itself {
            set_thread_groups(&groups)?;
            set_thread_gid(gid)?;
            set_thread_uid(uid)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made, on memory that exists already.
    unsafe { command.pre_exec(prepare) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_tells_a_missing_program_from_one_that_may_not_run() {
        for (number, code) in [
            (libc::ENOENT, Code::NotFound),
            (libc::EACCES, Code::PermissionDenied),
            (libc::ENOEXEC, Code::PermissionDenied),
            (libc::EAGAIN, Code::InvalidArgument),
        ] {
            assert_eq!(not_started("x", &io::Error::from_raw_os_error(number)).code, code);
        }
    }
}
