//! The program under test.

use std::path::PathBuf;

/// Returns the path of the binary under test.
///
/// # Panics
/// The binary does not exist.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("VOLT_VMM") {
        return path.into();
    }
    // target/<triple>/debug/deps/<this test> beside target/<triple>/debug/volt-vmm
    let this = std::env::current_exe().expect("this executable has a path");
    let beside = this
        .ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("volt-vmm"))
        .find(|path| path.is_file());
    beside.expect("no volt-vmm beside the tests: build it first (cargo build), or set VOLT_VMM")
}
