//! The library in one page: boots a kernel, lets it run for a moment and snapshots it. Two clones of the
//! snapshot then run beside the original, all in this process.
//!
//! `cargo run --release -p volt-vmm --example embed -- KERNEL [INITRD]`

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use volt_vmm::{Console, RestoreOptions, Result, Snapshot, Store, Vm};

/// A console that tells whose output it is, and when the first came.
struct Tagged(&'static str, Option<mpsc::Sender<Instant>>);

impl Write for Tagged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(first) = self.1.take() {
            let _ = first.send(Instant::now());
            println!("\n[{}]", self.0);
        }
        io::stdout().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

fn console(name: &'static str) -> (Console, mpsc::Receiver<Instant>) {
    let (first, told) = mpsc::channel();
    (Console::to(Tagged(name, Some(first))), told)
}

fn run(kernel: &Path, initrd: Option<&Path>, directory: &Path) -> Result<()> {
    let store = Store::open(&directory.display().to_string())?;
    let (output, _) = console("original");
    let mut builder = Vm::builder().kernel(kernel).console(output);
    if let Some(initrd) = initrd {
        builder = builder.initrd(initrd);
    }
    let vm = builder.start()?;
    std::thread::sleep(Duration::from_secs(1));
    vm.snapshot(&store, "warm")?;

    let warm = Snapshot::open(&store, "warm")?; // verified once, shared
    let clones: [Result<Vm>; 2] = ["first clone", "second clone"].map(|name| {
        let (console, told) = console(name);
        let asked = Instant::now();
        let clone = warm.restore_with(RestoreOptions::default().console(console))?;
        if let Ok(first) = told.recv_timeout(Duration::from_secs(1)) {
            eprintln!("\n{name}: first output {:?} after the request", first - asked);
        }
        Ok(clone)
    });
    for vm in [Ok(vm)].into_iter().chain(clones) {
        vm?.stop();
    }
    Ok(())
}

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(kernel) = arguments.next() else {
        eprintln!("usage: embed KERNEL [INITRD]");
        std::process::exit(2);
    };
    let initrd = arguments.next();
    let directory = std::env::temp_dir().join(format!("volt-embed-{}", std::process::id()));
    let done = std::fs::create_dir(&directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))
        .and_then(|()| {
            run(kernel.as_ref(), initrd.as_deref().map(Path::new), &directory)
                .map_err(|error| volt_vmm::report(&error))
        });
    let _ = std::fs::remove_dir_all(&directory);
    if let Err(error) = done {
        eprintln!("embed: {error}");
        std::process::exit(1);
    }
}
