//! Tests with a small freestanding guest, on any KVM. A file per behaviour.

mod bad_host;
mod bad_kernel;
mod bad_machine;
mod bad_memory_file;
mod bad_place;
mod bad_request;
mod bad_state;
mod balloon;
mod console_input;
mod diffs;
mod disk;
mod endings;
mod irqchip;
mod library;
mod live;
mod net;
mod on_disk;
mod packed;
mod pausing;
mod random;
mod registers;
mod restoring;
mod terminal;
mod timers;
mod vsock;
