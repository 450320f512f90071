//! `--rm`: a process that removes a VM's run directory once the VM has ended.
//!
//! The VM's process cannot do so: it may be confined, and may be killed. The client cannot either: it may
//! leave the VM.

use super::helper;
use crate::failure::Failure;
use crate::run_dir::record::Record;
use crate::run_dir::root::RunRoot;

/// Starts the process for a claimed name. If the VM does not start, it ends with the claim. This process has
/// one thread.
///
/// # Errors
/// The host refuses a process.
pub(super) fn start(root: &RunRoot, record: &Record) -> Result<(), Failure> {
    let act = "start the process that removes the run directory";
    // A directory that stays is an ended VM's: prune removes it.
    helper::start(c"volt-remover", act, &[], || root.remove_at_end(record))
}
