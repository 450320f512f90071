//! Kernel modules of the initramfs.

use std::fs::File;

use rustix::io::Errno;
use rustix::system::finit_module;

/// Inserts modules in this order.
pub(super) fn load(names: &[String]) -> Result<(), String> {
    for name in names {
        let path = format!("/{}/{name}", volt_job::job::MODULES);
        let file = File::open(&path).map_err(|error| format!("cannot open the module {path}: {error}"))?;
        match finit_module(&file, c"", 0) {
            // NODEV: a driver of hardware that the machine lacks, such as an instruction of a processor.
            Ok(()) | Err(Errno::EXIST | Errno::NODEV) => {}
            Err(Errno::NOEXEC) => {
                return Err(format!("{path} is no kernel module; unpack it if it is compressed"));
            }
            Err(error) => return Err(format!("cannot insert the module {path}: {error}")),
        }
    }
    Ok(())
}
