//! The kernel of VMs that run an image, its modules, and the initramfs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use volt_vmm::FileRef;
use volt_vmm::internal::key_directory;

use crate::failure::Failure;

/// The variable that names a directory of these files.
const VARIABLE: &str = "VOLT_GUEST";
const KERNEL: &str = "kernel";
const INITRAMFS: &str = "agent.cpio";
/// A directory of kernel modules beside the kernel, which the guest takes in the order of their names.
const MODULES: &str = "modules";
/// The place of packages.
const OF_PACKAGES: &str = "/usr/share/volt-vmm";

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct GuestFiles {
    pub(super) kernel: FileRef,
    /// Modules of the kernel, in the order in which the guest takes them.
    pub(super) modules: Vec<PathBuf>,
    /// The initramfs with the agent.
    pub(super) initramfs: PathBuf,
}

impl GuestFiles {
    /// Names of the modules, in the same order.
    pub(super) fn module_names(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().filter_map(|path| path.file_name()?.to_str())
    }
}

/// Finds the files. Options come first. A kernel of an option has no modules, so it needs none.
///
/// # Errors
/// There is none in any place, or the initramfs is given by its descriptor.
pub(super) fn find(kernel: Option<FileRef>, initramfs: Option<FileRef>) -> Result<GuestFiles, Failure> {
    let (kernel, modules) = match kernel {
        Some(kernel) => (kernel, Vec::new()),
        None => {
            let kernel = in_a_place(KERNEL, "kernel")?;
            let modules = modules_beside(&kernel)?;
            (kernel.into(), modules)
        }
    };
    let initramfs = match initramfs {
        Some(FileRef::Path(path)) => path,
        Some(_) => {
            return Err(Failure::config("initrd", "an initramfs for an image is given by its path"));
        }
        None => in_a_place(INITRAMFS, "initrd")?,
    };
    Ok(GuestFiles { kernel, modules, initramfs })
}

fn modules_beside(kernel: &Path) -> Result<Vec<PathBuf>, Failure> {
    let directory = kernel.with_file_name(MODULES);
    let failed = |error| Failure::system(format!("read {}", directory.display()), error);
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&directory).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let mut modules: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    modules.retain(|path| {
        path.extension().is_some_and(|extension| extension == "ko")
            && path.file_name().is_some_and(|name| name.to_str().is_some())
    });
    modules.sort_unstable();
    Ok(modules)
}

fn in_a_place(name: &str, field: &'static str) -> Result<PathBuf, Failure> {
    let places = match env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(given) => vec![PathBuf::from(given)],
        None => key_directory()
            .ok()
            .map(|data| data.join("guest"))
            .into_iter()
            .chain([OF_PACKAGES.into()])
            .collect(),
    };
    let files: Vec<_> = places.iter().map(|place| place.join(name)).collect();
    files.iter().find(|file| file.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        let problem = format!(
            "there is none for images at {}; scripts/quickstart.sh makes it, {VARIABLE} names its directory, \
             and --{field} another file",
            looked.join(" or ")
        );
        Failure::config(field, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    #[test]
    fn modules_beside_the_kernel_have_the_order_of_their_names() {
        let dir = Dir::new();
        let kernel = dir.path("kernel");
        assert_eq!(modules_beside(&kernel).unwrap(), Vec::<PathBuf>::new());
        fs::create_dir(dir.path("modules")).unwrap();
        for name in ["11-erofs.ko", "10-vsock.ko", "README"] {
            fs::write(dir.path("modules").join(name), "").unwrap();
        }
        let found = modules_beside(&kernel).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["10-vsock.ko", "11-erofs.ko"]);
    }
}
