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

/// Longest wait for the cancelling of an operation.
const TO_CANCEL: Duration = Duration::from_secs(2);
/// Longest wait for the progress of an operation.
const TO_LOOK: Duration = Duration::from_millis(500);
const OPERATIONS: &str = "/v1/vm/operations";

/// Sends the body that `request` makes for an operation's id with `POST path`, and returns the response.
/// Shows `what` and the progress on standard error once that has taken a second. SIGINT, SIGTERM, SIGHUP or
/// SIGQUIT cancels the operation; another one ends this process.
///
/// A server of an older version takes no id. It then tells no progress and cannot be told to cancel.
///
/// # Errors
/// As [`post`]; or a signal cancelled the operation.
pub(crate) fn post_followed<T: DeserializeOwned, R: Serialize>(
    socket: &Path,
    path: &str,
    what: &'static str,
    request: impl Fn(Option<String>) -> R,
) -> Result<T, Failure> {
    let id = random_hex()?;
    let cancel = || delete_within(socket, &format!("{OPERATIONS}/{id}"), TO_CANCEL);
    let look = || progress_of(socket, &id);
    progress::watching(what, cancel, look, || match post(socket, path, &request(Some(id.clone()))) {
        Err(Failure::Server(text)) if text.contains("unknown field `operation`") => {
            post(socket, path, &request(None))
        }
        answer => answer,
    })
}

/// Returns the bytes done and in all.
fn progress_of(socket: &Path, id: &str) -> (u64, u64) {
    let lists = get_all::<OperationList>(&[socket], OPERATIONS, TO_LOOK);
    let mut operations = lists.into_iter().flatten().flat_map(|list| list.operations);
    let own = operations.find(|operation| operation.id == id);
    own.map_or((0, 0), |operation| (operation.done_bytes, operation.total_bytes))
}
