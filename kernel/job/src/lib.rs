//! The contract between the host and process 1 of a VM that runs an image.
//!
//! The host writes a [`Job`] into the initramfs. Process 1 reports an [`Ended`] when the main process ends.
//! A host that follows the main process over the agent starts it by a [`StartMain`]. Files travel between the
//! host and the agent as trees ([`tree`]), and bytes to and from TCP ports by [`port`]. The VM's process
//! freezes the workload and wakes restored guests by [`quiet`].

pub mod ended;
pub mod job;
pub mod output;
pub mod port;
pub mod quiet;
pub mod start;
pub mod tree;

pub use ended::Ended;
pub use job::Job;
pub use start::StartMain;
