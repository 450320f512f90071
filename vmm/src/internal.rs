//! Internal parts for the command line, tests and benchmarks of this repository. They are not part of the
//! library's API, and change without notice.

pub use crate::config::sharing;
pub use crate::kvm::{clock, host, irqchip, msr, vcpu};
pub use crate::replay::{Measured, Replay, lazy_base, replay, times};
pub use crate::snapshot::format::pack;
pub use crate::sockets::lock_directory_of;
pub use crate::store::dir::random_hex;

/// Times of the steps of a restore.
pub mod timing {
    pub use crate::timing::*;
}
