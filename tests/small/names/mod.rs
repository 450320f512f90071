//! VMs with names: a process for each, whose run directory the commands use.

mod attached;
mod bad_names;
mod children;
mod directories;
mod ends;
mod events;
mod lifecycle;
mod races;
mod removal;
mod shells;
mod stalls;
mod stopping;
mod stored;
mod tmux;
