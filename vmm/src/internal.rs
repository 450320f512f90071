//! Internal parts for the command line, tests and benchmarks of this repository. They are not part of the
//! library's API, and change without notice. The feature `internal` of the crate opens them.

pub use crate::kvm::{clock, host, irqchip, msr, vcpu};
pub use crate::kvm::{create_vm_ahead, keep_device as keep_kvm};
pub use crate::nat::probe as probe_nat;
pub use crate::replay::{Measured, Replay, lazy_base, replay, times};
pub use crate::sandbox::this_thread::ThisThread;
pub use crate::snapshot::opened::grant::key::digest;
pub use crate::snapshot::opened::grant::key::{directory as key_directory, ensure as make_snapshot_key};
pub use crate::snapshot::{STATE_FILE, WORKING_SET_FILE};
pub use crate::sockets::{ListenOptions, peer_of};
pub use crate::store::dir::random_hex;
pub use crate::threads::{named as named_thread, spawn as spawn_thread};
pub use volt_kernel::initrd::archive;

/// Parts of strict confinement, for the jailer and benchmarks.
pub mod isolation {
    pub use crate::sandbox::strict::cgroups::delegate;
    pub use crate::sandbox::strict::job_control::{is_in_foreground, stop};
    pub use crate::sandbox::strict::namespaces::Namespace;
    pub use crate::sandbox::strict::{limits, namespaces, root};
}

/// System calls with paths, and other programs, for confined threads too.
pub mod paths {
    pub use crate::paths::opener::wake as wake_opener;
    pub use crate::paths::process::Process;
    pub use crate::paths::program::{DESCRIPTOR, OWN_PROGRAM, Program, Stream};
    pub use crate::paths::{absolute, is_locked, listen, metadata_of_link, open, remove_file};
}

/// Files that are there whole or not at all.
pub mod partial {
    pub use crate::partial::{create_file, remove_all_abandoned_files};
}

/// The programs that any VM may start.
pub mod programs {
    pub use crate::devices::virtio::net::passt::pattern as passt;
    pub use crate::pager::connection::pattern as pager;
}

/// Resources of the host that two VMs cannot have at once.
pub mod sharing {
    pub use crate::config::sharing::check;
}

/// Files with holes.
pub mod sparse {
    pub use crate::memory::files::sparse::each_with_data;
}

/// Packed memory.
pub mod pack {
    pub use crate::snapshot::format::pack::geometry::Geometry;
    pub use crate::snapshot::format::pack::*;
    pub use crate::snapshot::format::source::MemorySource;
}

/// Times of the steps of a restore.
pub mod timing {
    pub use crate::timing::*;
}
