//! Parts that benchmarks share: the programs that they run beside volt-vmm, times, counts and tables.

pub mod api;
pub mod built;
pub mod chart;
pub mod command_line;
pub mod document;
pub mod first_byte;
pub mod forks;
pub mod guest;
pub mod guest_memory;
pub mod held;
pub mod host;
pub mod image_host;
pub mod limits;
pub mod machine;
pub mod memory_options;
pub mod networks;
pub mod page_cache;
pub mod page_faults;
pub mod peer;
pub mod process;
pub mod programs;
pub mod scratch;
pub mod shuffle;
pub mod snapshots;
pub mod stats;
pub mod steps;
pub mod table;
pub mod turns;
pub mod wire;

/// An error that ends a benchmark; its text is for the one who runs it.
pub type Result<T> = std::result::Result<T, String>;

/// Turns any error into the text that ends a benchmark.
pub trait OrSay<T> {
    /// `act` is what could not be done, as in "start QEMU".
    ///
    /// # Errors
    /// The error it had.
    fn or_say(self, act: &str) -> Result<T>;
}

impl<T, E: std::error::Error + 'static> OrSay<T> for std::result::Result<T, E> {
    fn or_say(self, act: &str) -> Result<T> {
        self.map_err(|error| format!("cannot {act}: {}", volt_vmm::report(&error)))
    }
}
