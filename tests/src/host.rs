//! Programs and devices of the host.

use std::path::Path;
use std::process::Command;

use crate::patience::output;

/// A block device over a file. The device is removed on drop.
#[derive(Debug)]
pub struct LoopDevice(String);

impl LoopDevice {
    /// Makes a loop device.
    ///
    /// # Panics
    /// The host refuses: the test must begin with `needs!(loop_device)`.
    #[must_use]
    pub fn over(file: &Path) -> Self {
        let device = run("losetup", &["-f"]).trim().to_owned();
        run("losetup", &[&device, file.to_str().expect("a path of ours")]);
        Self(device)
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

/// Runs a program of the host and returns its output.
///
/// # Panics
/// The program does not exist, or fails.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let done = output(Command::new(program).args(arguments));
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}
