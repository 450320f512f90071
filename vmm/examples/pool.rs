//! Restores from a pool of empty VMs that are made ahead of time: a restore then makes no KVM VM.
//!
//! ```sh
//! cargo run --release -p volt-vmm --example pool -- SNAPSHOT_DIRECTORY
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use volt_vmm::{Pool, RestoreOptions, Result, Snapshot, Store, Vm, VmShape};

/// Restores `count` VMs one after another, each from a pool that keeps two ready. Returns the VMs, with the
/// time of each restore.
pub(crate) fn restore_from_pool(snapshot: &Snapshot, count: usize) -> Result<Vec<(Vm, Duration)>> {
    let pool = Arc::new(Pool::new(VmShape::of(snapshot.config()), 2)?);
    let restore = |_| {
        let began = Instant::now();
        let vm = snapshot.restore_with(RestoreOptions::default().pool(Arc::clone(&pool)))?;
        Ok((vm, began.elapsed()))
    };
    (0..count).map(restore).collect()
}

#[allow(dead_code)] // a test calls restore_from_pool() itself
fn main() -> Result<()> {
    let Some(directory) = std::env::args_os().nth(1) else {
        println!("Usage: pool SNAPSHOT_DIRECTORY");
        return Ok(());
    };
    let (store, name) = Store::split(Path::new(&directory))?;
    for (vm, took) in restore_from_pool(&Snapshot::open(&store, &name)?, 10)? {
        println!("restored in {took:.2?}");
        vm.stop();
        vm.wait()?;
    }
    Ok(())
}
