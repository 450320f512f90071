//! Landlock (landlock(7)): a thread in a domain without rights opens, creates and removes no file, binds and
//! connects no TCP port, and reaches no abstract socket of other processes. Descriptors that are open stay
//! usable.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Once, OnceLock};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::paths::rules::{Bounds, directory_of};

/// The newest version of Landlock that this program uses.
const NEWEST: ABI = ABI::V6;

/// Files that a VM's process reads for itself.
const READ_ALWAYS: [&str; 5] = [
    "/proc/cpuinfo",
    "/proc/self",
    "/proc/sys/kernel/random/boot_id",
    "/sys/module",
    "/sys/devices/system/cpu",
];
/// The list of servers for names (resolv.conf(5)), and their port.
const SERVERS: &str = "/etc/resolv.conf";
const DNS: u16 = 53;
/// Devices of all VMs.
const DEVICES: [&str; 3] = ["/dev/kvm", "/dev/null", "/dev/userfaultfd"];

/// Puts the calling thread into a domain without rights. One that may `signal` can send signals to processes
/// outside. A kernel without a part of Landlock is used without it, and the log says so once.
///
/// # Errors
/// The kernel refuses a domain.
pub(super) fn give_up_rights(signal: bool) -> Result<(), RulesetError> {
    static TOLD: Once = Once::new();
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(scopes(signal))?;
    let lacks = match restrict(ruleset.create()?)? {
        RulesetStatus::FullyEnforced => return Ok(()),
        RulesetStatus::PartiallyEnforced => "lacks a part of Landlock",
        RulesetStatus::NotEnforced => "has no Landlock",
    };
    TOLD.call_once(|| {
        log::info!("this kernel {lacks}; system calls are filtered all the same");
    });
    Ok(())
}

/// Puts the calling thread, the only one of its process, into a domain that leaves it the file system. It can
/// trace no process outside, and not read or write its memory, start no program, make no device file, connect
/// to no TCP port or abstract socket, and send no signal.
///
/// # Errors
/// The kernel refuses a domain.
pub(super) fn leave_other_processes() -> Result<(), RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock)?
        .handle_access(AccessNet::ConnectTcp)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?;
    restrict(ruleset.create()?).map(drop)
}

/// Puts the calling thread, the only one of its process, into a domain that leaves it what a resolver needs:
/// the directory of the list of servers, where another list may take its place, and connections to port 53.
///
/// # Errors
/// The kernel refuses a domain.
pub(super) fn keep_to_names() -> Result<(), RulesetError> {
    let list = std::fs::canonicalize(SERVERS).unwrap_or_else(|_| SERVERS.into());
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rule(NetPort::new(DNS, AccessNet::ConnectTcp))?;
    if let Ok(directory) = PathFd::new(directory_of(&list)) {
        ruleset = ruleset.add_rule(PathBeneath::new(directory, AccessFs::ReadFile))?;
    }
    restrict(ruleset).map(drop)
}

/// Puts the calling thread into a domain that leaves it the files of `bounds`, and what each VM needs.
///
/// # Errors
/// The kernel refuses a domain.
pub(super) fn keep_within(bounds: &Bounds) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(NEWEST) & !AccessFs::Execute;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let [always, devices] = [&READ_ALWAYS[..], &DEVICES].map(|paths| paths.iter().map(PathBuf::from));
    let rights = [
        (bounds.directories.clone(), all),
        (bounds.readable.iter().cloned().chain(always).collect(), read),
        (bounds.writable.iter().cloned().chain(devices).collect(), write),
        // Own sockets are removed at the end. The opener's own rules keep it from other files.
        (
            bounds.sockets.iter().map(|path| directory_of(path).to_owned()).collect(),
            AccessFs::RemoveFile.into(),
        ),
    ];
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .create()?;
    for (paths, access) in rights {
        for path in paths {
            // A missing file cannot be opened. A file has fewer rights than a directory.
            let Ok(file) = PathFd::new(&path) else { continue };
            let is_directory = path.is_dir();
            let access = if is_directory { access } else { access & AccessFs::from_file(NEWEST) };
            ruleset = ruleset.add_rule(PathBeneath::new(file, access))?;
        }
    }
    if restrict(ruleset)? == RulesetStatus::NotEnforced {
        log::warn!("strict confinement lacks what this host refuses: Landlock, so files are not bounded");
    }
    Ok(())
}

/// Scopes of a thread's domain, without that of signals if it may `signal`. The scope of signals is among
/// them where the kernel lets a thread in a domain signal the other threads of its process (erratum 2, mended
/// in Linux 6.15 and in stable kernels after that).
fn scopes(signal: bool) -> BitFlags<Scope> {
    static HAS_SIGNALS: OnceLock<bool> = OnceLock::new();
    match !signal && *HAS_SIGNALS.get_or_init(|| errata() & SIGNALS_OF_THREADS != 0) {
        true => Scope::AbstractUnixSocket | Scope::Signal,
        false => Scope::AbstractUnixSocket.into(),
    }
}

/// `LANDLOCK_CREATE_RULESET_ERRATA` (linux/landlock.h).
const ERRATA: libc::c_uint = 1 << 1;
/// Erratum 2 (security/landlock/errata/abi-6.h of the kernel).
const SIGNALS_OF_THREADS: libc::c_long = 1 << (2 - 1);

/// The errata of Landlock that this kernel has mended. It is 0 if the kernel cannot tell.
fn errata() -> libc::c_long {
    // SAFETY: with this flag the kernel reads no attribute, and returns a number.
    let found = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, ERRATA)
    };
    found.max(0)
}

fn restrict(ruleset: RulesetCreated) -> Result<RulesetStatus, RulesetError> {
    // The process has no_new_privs.
    Ok(ruleset.no_new_privs(false).restrict_self()?.ruleset)
}

/// Tries whether the calling thread is in a domain without rights: it may not list the root directory then.
/// A seccomp filter must not forbid the attempt.
pub(super) fn is_in_force() -> bool {
    let root = rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    root.is_err_and(|errno| errno == Errno::ACCESS)
}
