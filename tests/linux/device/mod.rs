//! Devices under Linux's drivers: alone, limited, failing and all busy at once.

mod balloon;
mod busy;
mod console;
mod disk;
mod disk_failing;
pub mod images;
mod irqchip;
mod jailed_net;
mod limits;
mod metadata;
mod net;
mod rng;
mod timers;
mod vsock;
