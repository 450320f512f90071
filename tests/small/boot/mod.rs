//! A guest runs, pauses and answers on the KVM of this host.

mod confined;
mod cpu_templates;
mod firecracker;
mod host_features;
mod injected;
mod jailed;
mod jailed_acts;
mod limits;
mod moved_jail;
mod pausing;
mod serial_output;
mod silence;
mod strict;
mod topology;
