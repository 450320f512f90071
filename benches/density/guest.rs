//! The VM that is forked: it touches its memory, and sleeps but for what is typed, which it sends back.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::{Console, RestoreOptions, Vm};

use crate::Options;

/// How long a guest may take to say something.
const LIMIT: Duration = Duration::from_secs(60);

/// Act of a guest.
pub fn cmdline(options: &Options) -> String {
    format!("echo mib={}", options.touched_mib)
}

/// A VM and what it says.
pub struct Guest {
    pub vm: Vm,
    said: Receiver<u8>,
}

/// Sends on what a guest says.
struct Sends(Sender<u8>);

impl Write for Sends {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            let _ = self.0.send(*byte); // nobody listens to one that is about to end
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn console() -> (Console, Receiver<u8>) {
    let (sends, said) = channel();
    (Console::to(Sends(sends)), said)
}

impl Guest {
    /// Boots it. It has touched its memory when this returns.
    ///
    /// # Errors
    /// It does not.
    pub fn boot(options: &Options, scratch: &Scratch) -> Result<Self> {
        let kernel = scratch.program("small-guest", programs::SMALL_GUEST)?;
        let (console, said) = console();
        let builder = Vm::builder().kernel(&kernel).cmdline(cmdline(options)).memory_mib(options.memory_mib);
        let vm = builder.irqchip(options.irqchip).console(console).start().or_say("boot a guest")?;
        let guest = Self { vm, said };
        guest.hears(b'\n')?;
        Ok(guest)
    }

    /// Forks it.
    ///
    /// # Errors
    /// It cannot be.
    pub fn fork(&self) -> Result<Self> {
        let (console, said) = console();
        let child = self.vm.fork([RestoreOptions::default().console(console)]);
        let vm = child.or_say("fork a VM")?.pop().ok_or("no child")?;
        Ok(Self { vm, said })
    }

    /// Types something, and waits until it comes back: it lives.
    ///
    /// # Errors
    /// It does not.
    pub fn answers(&self) -> Result<()> {
        self.vm.type_in(b"x").or_say("type")?;
        self.hears(b'x')
    }

    fn hears(&self, wanted: u8) -> Result<()> {
        while self.said.recv_timeout(LIMIT).or_say("hear from a guest")? != wanted {}
        Ok(())
    }
}
