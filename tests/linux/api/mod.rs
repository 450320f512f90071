//! The library with a Linux guest.

mod library;
