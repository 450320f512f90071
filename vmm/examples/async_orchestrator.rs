//! Runs many VMs on one thread of tokio: no thread waits for a guest's end.
//!
//! ```sh
//! cargo run --release -p volt-vmm --example async_orchestrator -- SNAPSHOT_DIRECTORY
//! ```

use std::error::Error;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use volt_vmm::{Ending, Snapshot, Store};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Has tokio poll a descriptor.
#[allow(unsafe_code)]
fn polled(fd: OwnedFd) -> Fallible<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open and stays the same while the result owns it.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Restores a VM, gives its guest `limit`, and ends it then.
async fn session(snapshot: Arc<Snapshot>, limit: Duration) -> Fallible<Ending> {
    // A restore takes milliseconds, and may wait for a disk: it is no work for the event loop's thread.
    let vm = Arc::new(spawn_blocking(move || snapshot.restore()).await??);
    let ended = polled(vm.ended_fd()?)?;
    if timeout(limit, ended.readable()).await.is_err() {
        vm.stop();
        let _readable = ended.readable().await?;
    }
    // The guest has ended, and its last writes still go to its disks.
    Ok(spawn_blocking(move || vm.wait_ending()).await??)
}

/// Runs `count` VMs at once, each for `limit` at most, and returns how they ended.
pub(crate) async fn sessions(snapshot: Snapshot, count: usize, limit: Duration) -> Fallible<Vec<Ending>> {
    let snapshot = Arc::new(snapshot);
    let mut running = JoinSet::new();
    for _ in 0..count {
        running.spawn(session(Arc::clone(&snapshot), limit));
    }
    let mut endings = Vec::new();
    while let Some(ending) = running.join_next().await {
        endings.push(ending??);
    }
    Ok(endings)
}

#[allow(dead_code)] // a test calls sessions() itself
#[tokio::main(flavor = "current_thread")]
async fn main() -> Fallible<()> {
    let Some(directory) = std::env::args_os().nth(1) else {
        println!("Usage: async_orchestrator SNAPSHOT_DIRECTORY");
        return Ok(());
    };
    let (store, name) = Store::split(Path::new(&directory))?;
    for ending in sessions(Snapshot::open(&store, &name)?, 20, Duration::from_secs(5)).await? {
        println!("a guest ended: {ending:?}");
    }
    Ok(())
}
