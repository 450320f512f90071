//! Landlock (landlock(7)): a thread in a domain without rights opens, creates and removes no file, binds and
//! connects no TCP port, and reaches no abstract socket of other processes. Descriptors that are open stay
//! usable.

use std::sync::Once;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The newest version of Landlock that this program uses. It leaves out the scope of signals: before Linux
/// 6.15 a thread in a domain could not signal the other threads of its process.
const NEWEST: ABI = ABI::V6;

/// Puts the calling thread into a domain without rights. A kernel without a part of Landlock is used without
/// it, and the log says so once.
///
/// # Errors
/// The kernel refuses a domain.
pub(super) fn give_up_rights() -> Result<(), RulesetError> {
    static TOLD: Once = Once::new();
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::AbstractUnixSocket)?
        .create()?
        .no_new_privs(false) // the process has it
        .restrict_self()?;
    let lacks = match status.ruleset {
        RulesetStatus::FullyEnforced => return Ok(()),
        RulesetStatus::PartiallyEnforced => "lacks a part of Landlock",
        RulesetStatus::NotEnforced => "has no Landlock",
    };
    TOLD.call_once(|| {
        log::info!("this kernel {lacks}; system calls are filtered all the same");
    });
    Ok(())
}

/// Tries whether the calling thread is in a domain without rights: it may not list the root directory then.
/// A seccomp filter must not forbid the attempt.
pub(super) fn is_in_force() -> bool {
    let root = rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    root.is_err_and(|errno| errno == Errno::ACCESS)
}
