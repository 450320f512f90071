//! Commands on VMs with names. Each takes a name, the beginning of an id, or the path of an API socket.

pub(super) mod attach;
pub(super) mod children;
pub(super) mod copy;
pub(super) mod events;
pub(super) mod exec;
pub(super) mod inspect;
pub(super) mod logs;
pub(super) mod naming;
pub(super) mod pause;
pub(super) mod port_forward;
pub(super) mod ps;
pub(super) mod rm;
pub(super) mod stats;
pub(super) mod stop;
pub(super) mod target;
pub(super) mod wait;
