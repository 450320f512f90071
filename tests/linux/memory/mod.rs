//! Linux over packed memory that is filled on access.

mod lazy;
