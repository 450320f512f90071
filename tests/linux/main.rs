//! Tests with a real Linux guest: natively where the host's KVM runs Linux, otherwise in the lab. A file per behaviour.
//!
//! The guest's init is the project's own (kernel/guest), which takes orders over the console.

mod api;
mod boot;
mod device;
mod memory;
mod snapshot;
