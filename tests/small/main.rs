//! Tests with a small freestanding guest, on any KVM. A file per behaviour.
mod endings;
