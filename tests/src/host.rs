//! What tests use of the host's programs.

use std::path::Path;
use std::process::Command;

use crate::patience::output;

/// A block device over a file. Dropped, it is no more.
#[derive(Debug)]
pub struct LoopDevice(String);

impl LoopDevice {
    /// Makes one.
    ///
    /// # Panics
    /// The host refuses: the test must begin with `needs!(loop_device)`.
    #[must_use]
    pub fn over(file: &Path) -> Self {
        let device = run("losetup", &["-f"]).trim().to_owned();
        run("losetup", &[&device, file.to_str().expect("a path of ours")]);
        Self(device)
    }

    /// Its path.
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

/// What a program of the host prints.
///
/// # Panics
/// It is not there, or fails.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let done = output(Command::new(program).args(arguments));
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}
