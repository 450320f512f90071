//! The devices under test, each with its host.

pub mod balloon;
pub mod console;
pub mod disk;
pub mod net;
pub mod rng;
pub mod vsock;
