//! Guests in this process, and what they say.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use volt_benches::{OrSay, Result};
use volt_vmm::VmBuilder;
use volt_vmm::{Console, Vm};

/// How long a guest may take to say something.
const LIMIT: Duration = Duration::from_secs(300);

/// Bytes that a guest has sent.
#[derive(Clone, Debug, Default)]
pub struct Said(Arc<(Mutex<Heard>, Condvar)>);

#[derive(Debug, Default)]
struct Heard {
    text: String,
    /// When the first of it came.
    first: Option<Instant>,
}

impl Said {
    pub fn console(&self) -> Console {
        Console::to(self.clone())
    }

    /// Waits until `found` finds something in what was said, or in when it began.
    ///
    /// # Errors
    /// It does not come.
    pub fn wait<T>(&self, mut found: impl FnMut(&str, Option<Instant>) -> Option<T>) -> Result<T> {
        let start = Instant::now();
        let (said, more) = &*self.0;
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = found(&said.text, said.first) {
                return Ok(found);
            }
            if start.elapsed() > LIMIT {
                return Err(format!("the guest does not say what is waited for; it said: {}", said.text));
            }
            let (next, _) = more.wait_timeout(said, LIMIT).unwrap_or_else(PoisonError::into_inner);
            said = next;
        }
    }

    /// When the first byte came.
    ///
    /// # Errors
    /// No byte came in time.
    pub fn first(&self) -> Result<Instant> {
        self.wait(|_, first| first)
    }

    /// How many bytes there are by now.
    pub fn len(&self) -> usize {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).text.len()
    }

    /// The longest of the stalls that were told since there were `from` bytes, in cycles of the TSC, once
    /// `count` have been.
    ///
    /// # Errors
    /// They do not come.
    pub fn longest_stall(&self, from: usize, count: usize) -> Result<u64> {
        self.wait(|said, _| {
            let told =
                said[from..].split('\n').filter_map(|line| line.strip_prefix("stall ")?.trim().parse().ok());
            let told: Vec<u64> = told.collect();
            (told.len() >= count).then(|| told.into_iter().max().unwrap_or(0))
        })
    }
}

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (said, more) = &*self.0;
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.first.get_or_insert_with(Instant::now);
        // One that says a byte after another is only waited for.
        if said.text.len() < 1 << 20 {
            said.text.push_str(&String::from_utf8_lossy(bytes));
        }
        more.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Boots a guest, which is ready when this returns.
///
/// # Errors
/// It is not.
pub fn boot(kernel: &Path, cmdline: &str, mib: u64) -> Result<(Vm, Said)> {
    boot_with(kernel, cmdline, mib, |builder| builder)
}

/// The same, of a guest that has something else too.
///
/// # Errors
/// As [`boot`].
pub fn boot_with(
    kernel: &Path,
    cmdline: &str,
    mib: u64,
    more: impl FnOnce(VmBuilder) -> VmBuilder,
) -> Result<(Vm, Said)> {
    let said = Said::default();
    let builder = Vm::builder().kernel(kernel).cmdline(cmdline).memory_mib(mib).console(said.console());
    let vm = more(builder).start().or_say("boot a guest")?;
    said.wait(|said, _| said.contains("ready").then_some(()))?;
    Ok((vm, said))
}
