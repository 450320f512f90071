//! Fills guest memory on touch, from a pack and through userfaultfd.

pub mod fault_service;
pub mod faults;
pub mod filler;
mod known_pages;
pub(crate) mod patience;
pub mod prefetch;
pub mod presence;
pub(crate) mod resident;
pub mod served_vm;
pub mod source;
#[cfg(test)]
pub(crate) mod tests;
pub mod userfault;
