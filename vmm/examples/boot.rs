//! Boots a kernel, and writes its serial console to standard output.
//!
//! ```sh
//! cargo run -p volt-vmm --example boot -- KERNEL [INITRD]
//! ```

use std::path::Path;

use volt_vmm::{Console, Ending, Result, Vm};

/// Boots `kernel` with 256 MiB of memory, and waits until the guest ends.
pub(crate) fn boot(kernel: &Path, initrd: Option<&Path>, cmdline: &str, console: Console) -> Result<Ending> {
    let mut builder = Vm::builder().kernel(kernel).cmdline(cmdline).memory_mib(256).console(console).rng();
    if let Some(initrd) = initrd {
        builder = builder.initrd(initrd);
    }
    builder.start()?.wait_ending()
}

#[allow(dead_code)] // a test calls boot() itself
fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(kernel) = arguments.next() else {
        println!("Usage: boot KERNEL [INITRD]");
        return Ok(());
    };
    let initrd = arguments.next();
    let cmdline = "console=ttyS0 reboot=t panic=-1";
    let ending = boot(kernel.as_ref(), initrd.as_ref().map(Path::new), cmdline, Console::stdout())?;
    println!("the guest ended: {ending:?}");
    Ok(())
}
