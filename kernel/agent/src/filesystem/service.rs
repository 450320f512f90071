//! The RPC service `filesystem.Filesystem`.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, renameat, statat};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::entry::describe;
use super::list::list;
use super::path::resolve;
use super::remove;
use super::walk::{self, Missing};
use super::watch::Watcher;
use super::watchers::Watchers;
use crate::connect::call::{answer, failed};
use crate::connect::{Call, Code, EventSender, RpcError};
use crate::messages::filesystem::{
    CreateWatcherResponse, Empty, EntryInfo, EntryResponse, GetWatcherEventsResponse, ListDirRequest,
    ListDirResponse, MoveRequest, PathRequest, WatchRequest, WatchResponse, WatcherRequest,
};
use crate::reply::Reply;
use crate::users::{Names, User};

/// Serves a method. `None` means an unknown one.
pub async fn serve(watchers: &Watchers, method: &str, mut call: Call) -> Option<Reply> {
    let form = call.form;
    let reply = match method {
        "Stat" => answer(form, stat(watchers, &mut call).await),
        "MakeDir" => answer(form, make_dir(watchers, &mut call).await),
        "Move" => answer(form, rename(watchers, &mut call).await),
        "ListDir" => answer(form, list_dir(watchers, &mut call).await),
        "Remove" => answer(form, remove(watchers, &mut call).await),
        "WatchDir" => watch_dir(watchers, call).await.unwrap_or_else(|error| failed(form, &error)),
        "CreateWatcher" => answer(form, create_watcher(watchers, &mut call).await),
        "GetWatcherEvents" => answer(form, watcher_events(watchers, &mut call).await),
        "RemoveWatcher" => answer(form, remove_watcher(watchers, &mut call).await),
        _ => return None,
    };
    Some(reply)
}

/// Runs work that may wait for a disk in another thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| RpcError::new(Code::Internal, format!("the call ended: {error}")))?
}

fn place(watchers: &Watchers, call: &Call, path: &str) -> Result<(User, PathBuf), RpcError> {
    let user = watchers.setup.caller(&call.headers)?;
    let path = resolve(&user, path)?;
    Ok((user, path))
}

/// A place that the call has to name, and which may go.
fn movable_place(
    watchers: &Watchers,
    call: &Call,
    field: &str,
    path: &str,
) -> Result<(User, PathBuf), RpcError> {
    let user = watchers.setup.caller(&call.headers)?;
    let path = movable(&user, field, path)?;
    Ok((user, path))
}

/// Refuses an empty path, which would be the user's home, and the root directory.
fn movable(user: &User, field: &str, path: &str) -> Result<PathBuf, RpcError> {
    let wrong = |why: &str| RpcError::new(Code::InvalidArgument, format!("{field} {why}"));
    if path.is_empty() {
        return Err(wrong("is empty"));
    }
    let path = resolve(user, path)?;
    if path == Path::new("/") { Err(wrong("is the root directory")) } else { Ok(path) }
}

fn entry(path: &Path) -> Result<EntryResponse, RpcError> {
    let described: io::Result<EntryInfo> = describe(path, &Names::read());
    let act = format!("stat {}", path.display());
    described
        .map(|entry| EntryResponse { entry: Some(entry) })
        .map_err(|error| RpcError::of_file(&act, &error))
}

async fn stat(watchers: &Watchers, call: &mut Call) -> Result<EntryResponse, RpcError> {
    let request = call.message::<PathRequest>().await?;
    let (_, path) = place(watchers, call, &request.path)?;
    blocking(move || entry(&path)).await
}

async fn make_dir(watchers: &Watchers, call: &mut Call) -> Result<EntryResponse, RpcError> {
    let request = call.message::<PathRequest>().await?;
    let (user, path) = place(watchers, call, &request.path)?;
    blocking(move || {
        if let Ok(metadata) = fs::metadata(&path) {
            let (code, why) = match metadata.is_dir() {
                true => (Code::AlreadyExists, "exists"),
                false => (Code::InvalidArgument, "is no directory"),
            };
            return Err(RpcError::new(code, format!("{} {why}", path.display())));
        }
        let act = format!("make directory {}", path.display());
        walk::make_directories(&user, &path).map_err(|error| RpcError::of_file(&act, &error))?;
        entry(&path)
    })
    .await
}

async fn rename(watchers: &Watchers, call: &mut Call) -> Result<EntryResponse, RpcError> {
    let request = call.message::<MoveRequest>().await?;
    let (user, source) = movable_place(watchers, call, "source", &request.source)?;
    let (_, destination) = movable_place(watchers, call, "destination", &request.destination)?;
    blocking(move || {
        let act = format!("move {} to {}", source.display(), destination.display());
        let failed = |error: io::Error| RpcError::of_file(&act, &error);
        let from = walk::place(&user, &source, Missing::Fail).map_err(failed)?;
        statat(&from.parent, &from.name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| failed(error.into()))?;
        let to = walk::place(&user, &destination, Missing::Make).map_err(failed)?;
        renameat(&from.parent, &from.name, &to.parent, &to.name).map_err(|error| failed(error.into()))?;
        entry(&destination)
    })
    .await
}

async fn list_dir(watchers: &Watchers, call: &mut Call) -> Result<ListDirResponse, RpcError> {
    let request = call.message::<ListDirRequest>().await?;
    let (_, path) = place(watchers, call, &request.path)?;
    blocking(move || list(&path, request.depth).map(|entries| ListDirResponse { entries })).await
}

async fn remove(watchers: &Watchers, call: &mut Call) -> Result<Empty, RpcError> {
    let request = call.message::<PathRequest>().await?;
    let (user, path) = movable_place(watchers, call, "path", &request.path)?;
    blocking(move || {
        let removed = walk::place(&user, &path, Missing::Fail)
            .and_then(|place| remove::remove(place.parent.as_fd(), &place.name));
        match removed {
            // The caller wants it gone, and it is.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Empty {}),
            Err(error) => Err(RpcError::of_file(&format!("remove {}", path.display()), &error)),
            Ok(()) => Ok(Empty {}),
        }
    })
    .await
}

async fn watch_dir(watchers: &Watchers, mut call: Call) -> Result<Reply, RpcError> {
    let request = call.message::<WatchRequest>().await?;
    let (_, path) = place(watchers, &call, &request.path)?;
    let watcher = Watcher::new(path, &request)?;
    let (events, reply) = EventSender::new(call.form);
    let timeout = call.timeout().filter(|timeout| !timeout.is_zero());
    tokio::task::spawn_local(send_changes(watcher, events, call.keepalive(), timeout));
    Ok(reply)
}

async fn send_changes(watcher: Watcher, events: EventSender, keepalive: Duration, timeout: Option<Duration>) {
    let sent = send_until_closed(&watcher, &events, keepalive);
    let error = match timeout {
        None => sent.await.err(),
        Some(timeout) => match tokio::time::timeout(timeout, sent).await {
            Ok(sent) => sent.err(),
            Err(_) => Some(RpcError::new(Code::DeadlineExceeded, "the call's time is over")),
        },
    };
    if error.is_some() {
        events.end(error.as_ref()).await;
    }
}

/// Sends changes until the client closes the stream, or changes are lost.
async fn send_until_closed(
    watcher: &Watcher,
    events: &EventSender,
    keepalive: Duration,
) -> Result<(), RpcError> {
    let mut next = WatchResponse { start: Some(Empty {}), ..Default::default() };
    loop {
        if events.send(&next).await.is_err() {
            return Ok(());
        }
        next = WatchResponse { keepalive: Some(Empty {}), ..Default::default() };
        loop {
            let changes = watcher.take()?;
            let any = !changes.is_empty();
            for change in changes {
                let response = WatchResponse { filesystem: Some(change), ..Default::default() };
                if events.send(&response).await.is_err() {
                    return Ok(());
                }
            }
            if any {
                // Other calls have their turn, however fast changes come.
                yield_now().await;
                continue;
            }
            tokio::select! {
                changed = watcher.changed() => if changed.is_err() { return Ok(()) },
                () = events.closed() => return Ok(()),
                () = sleep(keepalive) => break,
            }
        }
    }
}

async fn create_watcher(watchers: &Watchers, call: &mut Call) -> Result<CreateWatcherResponse, RpcError> {
    let request = call.message::<WatchRequest>().await?;
    let (_, path) = place(watchers, call, &request.path)?;
    let watcher_id = watchers.add(Watcher::new(path, &request)?)?;
    Ok(CreateWatcherResponse { watcher_id })
}

async fn watcher_events(watchers: &Watchers, call: &mut Call) -> Result<GetWatcherEventsResponse, RpcError> {
    let request = call.message::<WatcherRequest>().await?;
    watchers.take(&request.watcher_id).map(|events| GetWatcherEventsResponse { events })
}

async fn remove_watcher(watchers: &Watchers, call: &mut Call) -> Result<Empty, RpcError> {
    let request = call.message::<WatcherRequest>().await?;
    watchers.remove(&request.watcher_id).map(|()| Empty {})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::user;

    // No test sends such a call to an agent: one that obeyed it would empty the machine.
    #[test]
    fn empty_path_and_root_directory_are_neither_moved_nor_removed() {
        let me = user(1, Path::new("/home/me"));
        for path in ["", "/", "//", "/.", "/a/..", "..///..", "~/../.."] {
            let error = movable(&me, "path", path).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{path}");
        }
        assert_eq!(movable(&me, "path", "a").unwrap(), Path::new("/home/me/a"));
        assert_eq!(movable(&me, "path", "~").unwrap(), Path::new("/home/me"));
    }
}
