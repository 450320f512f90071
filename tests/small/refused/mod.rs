//! Bad hosts, options, requests and files: an error names the cause, and no running guest is affected.

mod bad_cpu_template;
mod bad_host;
mod bad_kernel;
mod bad_machine;
mod bad_memory_file;
mod bad_place;
mod bad_request;
mod bad_state;
mod forged;
mod granted;
mod matrix;
mod rude_clients;
mod shared;
