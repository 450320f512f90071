//! System calls that take a path, for the whole library.
//!
//! A confined thread reaches no path (see [`crate::sandbox`]). It asks the [`opener`], a process beside this
//! one, to make the call. Other threads make it themselves.
//!
//! ```text
//!   confined thread: open(PATH) ── request ──> the opener: openat(PATH) ──> descriptor
//!   another thread:  open(PATH) ─────────────────────────> openat(PATH)
//! ```
#![allow(unsafe_code)]

mod ahead;
mod call;
mod channel;
mod message;
pub(crate) mod opener;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod rules;
mod serve;
mod started;

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Dir, OFlags, ResolveFlags};
use volt_policy::HostNetwork;

pub use ahead::OpenedAhead;
pub use call::PagerSocket;
use call::{Answer, PathCall, PathText};

use crate::holders::{self, Holder};
use crate::host_network;
use crate::nat::{self, NatLink, NatSettings};
use crate::resolver::{self, HostView};
use crate::sockets::{self, ListenOptions};

thread_local! {
    /// Whether this thread asks the opener.
    static ASKS: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread ask the opener from now on, if the process has one.
pub(crate) fn ask_from_now_on() {
    ASKS.set(opener::is_running());
}

/// The directory where relative paths start, in a process that left it for an empty root.
static CURRENT: OnceLock<PathBuf> = OnceLock::new();

/// Notes the current directory, which the process is about to leave. The opener stays in it.
pub(crate) fn keep_current_directory() {
    if let Ok(current) = std::env::current_dir() {
        let _ = CURRENT.set(current);
    }
}

/// The absolute form of a path, without a look at the file system.
///
/// # Errors
/// The path is empty, or the current directory is gone.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    match CURRENT.get() {
        Some(current) => std::path::absolute(current.join(path)),
        None => std::path::absolute(path),
    }
}

/// Where files without a name are made, in a process that may not make them everywhere.
static TEMPORARY: OnceLock<PathBuf> = OnceLock::new();

/// Makes files without a name in this directory from now on.
pub(crate) fn keep_temporary_directory(directory: &Path) {
    let _ = TEMPORARY.set(directory.to_owned());
}

/// The directory for files without a name: `TMPDIR` or `/tmp`, in a process with bounds the first directory
/// that it was allowed.
pub(crate) fn temporary_directory() -> PathBuf {
    TEMPORARY.get().cloned().unwrap_or_else(std::env::temp_dir)
}

/// Whether this thread asks the opener: it is confined, or the process left the directories of the host.
fn asks() -> bool {
    ASKS.get() || (CURRENT.get().is_some() && opener::is_running())
}

/// Makes a call, here or at the opener. A path that is not absolute is looked up in `directory`, if given.
fn make(directory: Option<BorrowedFd<'_>>, path: &Path, call: PathCall) -> io::Result<Answer> {
    if !asks() {
        return call.make(directory, path);
    }
    // The opener has other descriptors.
    let answer = match own_descriptor(path) {
        None => opener::make(directory, path, call),
        Some((number, rest)) => {
            // SAFETY: whoever wrote the path holds the descriptor open. A closed one is an error of
            // sendmsg(2).
            let beside = unsafe { BorrowedFd::borrow_raw(number) };
            opener::make(Some(beside), rest, call)
        }
    };
    answer.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied if CURRENT.get().is_some() => io::Error::new(
            ErrorKind::PermissionDenied,
            "permission denied; a strictly confined process opens only files of its configuration, and files \
             in the directories that it was allowed at its start (--allow-path)",
        ),
        _ => error,
    })
}

/// Splits `/proc/self/fd/N/REST`, or another name of it.
fn own_descriptor(path: &Path) -> Option<(i32, &Path)> {
    let streams = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    if let Some(number) = (0..).zip(streams).find_map(|(number, stream)| (path == stream).then_some(number)) {
        return Some((number, Path::new("")));
    }
    let text = path.as_os_str().as_bytes();
    let text = text.strip_prefix(b"/proc/self/fd/").or_else(|| text.strip_prefix(b"/dev/fd/"))?;
    let end = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
    let number = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
    let rest = text[end..].strip_prefix(b"/").unwrap_or_default();
    Some((number, Path::new(std::ffi::OsStr::from_bytes(rest))))
}

/// Opens a file. `O_CLOEXEC` is added. A call that a signal interrupts is made again.
///
/// # Errors
/// As openat(2); or the opener has ended. The same holds for the functions below.
pub fn open(path: impl AsRef<Path>, flags: OFlags, mode: u32) -> io::Result<File> {
    open_at(None, path, flags, mode)
}

/// Opens a file, whose path starts at `directory` if one is given.
pub fn open_at(
    directory: Option<BorrowedFd<'_>>,
    path: impl AsRef<Path>,
    flags: OFlags,
    mode: u32,
) -> io::Result<File> {
    open_resolved(directory, path.as_ref(), flags, mode, None).map(File::from)
}

/// Opens a file beneath `directory` (openat2(2)).
pub fn open_beneath(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    open_resolved(Some(directory), path, flags, 0, Some(resolve))
}

fn open_resolved(
    directory: Option<BorrowedFd<'_>>,
    path: &Path,
    flags: OFlags,
    mode: u32,
    resolve: Option<ResolveFlags>,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    if directory.is_none()
        && resolve.is_none()
        && asks()
        && let Some(opened) = ahead::take(path, flags)
    {
        return opened;
    }
    let flags = flags.bits();
    let resolve = resolve.map(|resolve| resolve.bits());
    make(directory, path, PathCall::Open { flags, mode, resolve })?.descriptor()
}

/// Opens a file for reading.
pub fn open_to_read(path: impl AsRef<Path>) -> io::Result<File> {
    open(path, OFlags::RDONLY, 0)
}

/// Reads a whole file of text.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    io::read_to_string(open_to_read(path)?)
}

/// The metadata of a file, or of a link itself.
pub fn metadata_of_link(path: &Path) -> io::Result<Metadata> {
    match asks() {
        true => metadata_at(None, path),
        false => fs::symlink_metadata(path),
    }
}

/// The metadata of the file `path` in `directory`, or of a link itself.
pub fn metadata_at(directory: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<Metadata> {
    if directory.is_none()
        && asks()
        && let Some(found) = ahead::metadata_of_link(path)
    {
        return found;
    }
    open_at(directory, path, OFlags::PATH | OFlags::NOFOLLOW, 0)?.metadata()
}

/// The metadata of a file, through links.
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    match asks() {
        true => open(path, OFlags::PATH, 0)?.metadata(),
        false => fs::metadata(path),
    }
}

/// Makes a directory.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    make(None, path, PathCall::MakeDir { mode }).map(drop)
}

/// Makes a directory and its parents. An existing one is no error.
pub fn make_dirs(path: &Path, mode: u32) -> io::Result<()> {
    match make_dir(path, mode) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            make_dirs(parent.ok_or(error)?, mode)?;
            make_dirs(path, mode)
        }
        Err(_) if metadata(path).is_ok_and(|found| found.is_dir()) => Ok(()),
        made => made,
    }
}

/// Removes a file's name.
pub fn remove_file(path: &Path) -> io::Result<()> {
    remove_at(None, path, false)
}

/// Removes an empty directory.
pub fn remove_dir(path: &Path) -> io::Result<()> {
    remove_at(None, path, true)
}

/// Removes the name of a file, or an empty directory, in `directory`.
pub fn remove_at(directory: Option<BorrowedFd<'_>>, path: &Path, is_directory: bool) -> io::Result<()> {
    make(directory, path, PathCall::Remove { is_directory }).map(drop)
}

/// Renames a file. It replaces an existing one at `to` if `replaces`.
pub fn rename(from: &Path, to: &Path, replaces: bool) -> io::Result<()> {
    make(None, from, PathCall::Rename { to: PathText::from(to), replaces }).map(drop)
}

/// Gives a file a second name.
pub fn link(from: &Path, to: &Path) -> io::Result<()> {
    make(None, from, PathCall::Link { to: PathText::from(to) }).map(drop)
}

/// The names in a directory.
pub fn entries(path: &Path) -> io::Result<Vec<OsString>> {
    names_in(&open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)?)
}

/// The names in an open directory.
pub fn names_in(directory: &File) -> io::Result<Vec<OsString>> {
    let name =
        |entry: rustix::fs::DirEntry| std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
    // The directory may be open for its path alone, and its position is shared.
    let own = open_at(Some(directory.as_fd()), ".", OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    let entries = Dir::new(own)?.map(|entry| Ok(name(entry?)));
    entries.filter(|entry| !entry.as_ref().is_ok_and(|name| name == "." || name == "..")).collect()
}

/// The path of an open file, as the kernel tells it. A confined thread may ask for it, because nothing is
/// opened.
pub fn path_of(file: impl AsFd) -> io::Result<PathBuf> {
    fs::read_link(own_path(&file))
}

/// The path of an open file, also in a process that has no `/proc`.
pub fn real_path(file: BorrowedFd<'_>) -> io::Result<PathBuf> {
    match make(Some(file), Path::new(""), PathCall::PathOf)? {
        Answer::Path(path) => Ok(path.into()),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// The kernel's description of an open file (`/proc/PID/fdinfo` of proc(5)).
pub fn info_of(file: impl AsFd) -> io::Result<String> {
    match make(Some(file.as_fd()), Path::new(""), PathCall::InfoOf)? {
        Answer::Text(text) => Ok(text),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Opens the file of an open descriptor anew.
pub fn reopen(file: impl AsFd, flags: OFlags) -> io::Result<File> {
    open(own_path(&file), flags, 0)
}

/// The path at which the kernel shows this process its descriptor.
fn own_path(file: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Listens at a socket, in place of one that a dead process left. Returns its
/// file's device and inode, too.
///
/// # Errors
/// As [`crate::sockets::listen`].
pub fn listen(
    directory: Option<BorrowedFd<'_>>,
    path: &Path,
    options: ListenOptions,
) -> io::Result<(UnixListener, (u64, u64))> {
    let Answer::Listening { socket, file } = make(directory, path, PathCall::Listen(options))? else {
        return Err(ErrorKind::InvalidData.into());
    };
    if asks() {
        // The process that listened last is the one that clients see as their peer (SO_PEERCRED).
        rustix::net::listen(&socket, sockets::BACKLOG)?;
    } else {
        opener::own(file);
    }
    Ok((socket.into(), file))
}

/// Connects to the socket of a pager or memory handler. Does not wait for room in the queue of one that
/// accepts no connections.
pub fn connect_to_pager(path: &Path, kind: PagerSocket) -> io::Result<OwnedFd> {
    make(None, path, PathCall::ConnectToPager(kind))?.descriptor()
}

/// The process that has the lock of a file, if it can be found.
pub fn holder_of_lock(file: &File) -> Option<Holder> {
    if asks() { opener::holder_of_lock(file) } else { holders::of_lock(file) }
}

/// Tells whether a process has locked a file, as VMs lock their disks. One that does not exist is not locked.
#[cfg(any(feature = "internal", test))]
pub fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| holder_of_lock(&file).is_some())
}

/// The process that uses a tap, if it can be found.
pub fn holder_of_tap(name: &str) -> Option<Holder> {
    if asks() { opener::holder_of_tap(name) } else { holders::of_tap(name) }
}

/// The process that listens at a TCP port, if it can be found.
pub fn holder_of_port(port: u16) -> Option<Holder> {
    if asks() { opener::holder_of_port(port) } else { holders::of_port(port) }
}

/// The network of the host.
///
/// # Errors
/// It cannot be read.
pub fn host_network() -> io::Result<HostNetwork> {
    if asks() { opener::host_network() } else { host_network::read() }
}

/// Starts a resolver. Returns the end of its socket that asks. It ends when that is closed.
///
/// # Errors
/// The host refuses a process or a thread.
pub(crate) fn start_resolver() -> io::Result<OwnedFd> {
    if asks() {
        return opener::start_resolver();
    }
    let (near, far) = resolver::socket()?;
    std::thread::Builder::new()
        .name("volt-resolver".into())
        .spawn(move || resolver::run(&far, HostView::open(&far).as_ref()))?;
    Ok(near)
}

/// Makes a network by address translation.
///
/// # Errors
/// As [`nat::make`].
pub(crate) fn make_nat(settings: &NatSettings) -> io::Result<NatLink> {
    if asks() { opener::make_nat(settings) } else { nat::make(settings) }
}

/// Checks that a TCP port of 127.0.0.1 is free.
pub fn check_port(port: u16) -> io::Result<()> {
    make(None, Path::new(""), PathCall::CheckPort(port)).map(drop)
}
