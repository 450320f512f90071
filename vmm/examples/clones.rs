//! Boots one VM, snapshots it once it is warm, and restores a hundred clones, which share its memory.
//!
//! ```sh
//! cargo run --release -p volt-vmm --example clones -- KERNEL [INITRD]
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use volt_vmm::{Result, Snapshot, SnapshotOptions, Store, Vm};

/// Restores `count` clones of a guest that ran for `warm_up`. Returns them with the time that restoring took.
pub(crate) fn clones(vm: &Vm, store: &Store, warm_up: Duration, count: usize) -> Result<(Vec<Vm>, Duration)> {
    if vm.wait_timeout(warm_up)?.is_some() {
        println!("the guest ended before it was warm");
        return Ok((Vec::new(), Duration::ZERO));
    }
    vm.snapshot_with(store, "warm", &SnapshotOptions::default())?;
    let warm = Snapshot::open(store, "warm")?; // verified once, shared by all clones
    let began = Instant::now();
    let clones = (0..count).map(|_| warm.restore()).collect::<Result<Vec<_>>>()?;
    Ok((clones, began.elapsed()))
}

#[allow(dead_code)] // a test calls clones() itself
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(kernel) = arguments.next() else {
        println!("Usage: clones KERNEL [INITRD]");
        return Ok(());
    };
    let mut builder = Vm::builder().kernel(Path::new(&kernel)).memory_mib(256).rng();
    if let Some(initrd) = arguments.next() {
        builder = builder.initrd(Path::new(&initrd));
    }
    let vm = builder.start()?;
    let directory = std::env::temp_dir().join(format!("volt-clones-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let store = Store::open(&format!("file://{}", directory.display()))?;
    let made = clones(&vm, &store, Duration::from_secs(5), 100);
    std::fs::remove_dir_all(&directory)?; // the clones keep the files open
    let (clones, took) = made?;
    println!("{} clones in {took:.1?}", clones.len());
    clones.iter().for_each(Vm::stop);
    Ok(clones.iter().try_for_each(Vm::wait)?)
}
