//! Linux boots on machines of several shapes, pauses and ends.

mod booting;
mod clients;
mod ending;
mod mp_table;
mod pausing;
mod stock;
