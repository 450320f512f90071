//! Tests with a small freestanding guest, on any KVM. A file per behaviour.

// In place of the built-in attribute: it registers a test with the runner.
#[macro_use]
extern crate volt_test_macros;

mod bad_host;
mod bad_kernel;
mod bad_machine;
mod bad_memory_file;
mod bad_place;
mod bad_request;
mod bad_state;
mod balloon;
mod benching;
mod changed_memory;
mod console_input;
mod diffs;
mod disk;
mod endings;
mod examples;
mod forged;
mod forking;
mod golden;
mod golden_answers;
mod granted;
mod host_features;
mod images;
mod irqchip;
mod large_base;
mod layer_size;
mod layers_bound;
mod layers_copied;
mod layers_kept;
mod lazy;
mod lazy_forks;
mod leaks;
mod leftovers;
mod library;
mod live;
mod max_pause;
mod messages;
mod net;
mod on_disk;
mod other_kvm;
mod packed;
mod pager;
mod pager_devices;
mod pager_groups;
mod pager_hostile;
mod pausing;
mod prewarming;
mod random;
mod recording;
mod registers;
mod restoring;
mod rewinding;
mod silence;
mod terminal;
mod timers;
mod tsc;
mod two_vcpus;
mod unreadable;
mod vsock;
mod whole_state;
mod working_set;

fn main() {
    volt_tests::suite("small").main()
}
