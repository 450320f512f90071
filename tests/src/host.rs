//! What tests use of the host's programs.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

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

/// Whether the processor is QEMU's and not a real one, as in the lab.
#[must_use]
pub fn is_emulated() -> bool {
    static EMULATED: OnceLock<bool> = OnceLock::new();
    *EMULATED.get_or_init(|| {
        std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG CPU"))
    })
}

/// What a program of the host prints.
///
/// # Panics
/// It is not there, or fails.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}
