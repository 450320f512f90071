//! A request for a long act of a VM: its progress is shown, and a signal cancels it.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use volt_vmm::internal::random_hex;

use crate::client::{delete_within, get_all, post};
use crate::failure::Failure;
use crate::output::progress;
use crate::rest::OperationList;
use crate::terminal::interrupts::Interrupts;

/// Longest wait for the answer about an operation.
const PATIENCE: Duration = Duration::from_secs(2);
const OPERATIONS: &str = "/v1/vm/operations";

/// Sends the body that `request` makes for an operation's id with `POST path`, and returns the response.
/// Shows `what` and the progress on standard error once that has taken a second. SIGINT, SIGTERM, SIGHUP or
/// SIGQUIT cancels the operation; a second one ends this process.
///
/// # Errors
/// As [`post`]; or a signal cancelled the operation.
pub(crate) fn post_followed<T: DeserializeOwned, R: Serialize>(
    socket: &Path,
    path: &str,
    what: &'static str,
    request: impl FnOnce(String) -> R,
) -> Result<T, Failure> {
    let id = random_hex()?;
    let body = request(id.clone());
    let mut interrupts = Interrupts::block()?;
    let look = || {
        interrupts.take(|| delete_within(socket, &format!("{OPERATIONS}/{id}"), PATIENCE));
        progress_of(socket, &id)
    };
    let answer = progress::watching(what, look, || post(socket, path, &body));
    interrupts.outcome_of(answer)
}

/// Returns the bytes done and in all.
fn progress_of(socket: &Path, id: &str) -> (u64, u64) {
    let lists = get_all::<OperationList>(&[socket], OPERATIONS, PATIENCE);
    let mut operations = lists.into_iter().flatten().flat_map(|list| list.operations);
    let own = operations.find(|operation| operation.id == id);
    own.map_or((0, 0), |operation| (operation.done_bytes, operation.total_bytes))
}
