//! Tests with a small freestanding guest, on any KVM. A file per behaviour.

mod api;
mod boot;
mod device;
mod memory;
mod refused;
mod snapshot;
