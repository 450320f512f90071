//! A guest runs, pauses and answers on the KVM of this host.

mod confined;
mod firecracker;
mod host_features;
mod injected;
mod jailed;
mod jailed_acts;
mod limits;
mod pausing;
mod silence;
mod strict;
