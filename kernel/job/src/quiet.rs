//! Calls on the agent's second port, by which the VM's own process controls the guest: it freezes the
//! workload before a snapshot, and wakes the guest after a restore.
//!
//! ```text
//!   host: POST /volt/quiesce ──> hooks of pre-snapshot.d, freeze ──> 200 Frozen
//!   host: snapshot
//!   the VM: POST /volt/thaw ──> thaw
//!   a restored VM: POST /volt/wake (Wake) ──> entropy, clock, names, hooks of post-restore.d ──> 200 Woken
//!   a restored VM: POST /volt/thaw ──> thaw
//!   before the main process of an image: POST /volt/mount (Mount, …) ──> mounts
//! ```

use serde::{Deserialize, Serialize};

/// The vsock port. Unlike the agent's first port, it is not for the owner of the workload.
pub const PORT: u32 = 49982;
/// Freezes the workload. The answer is a [`Frozen`].
pub const QUIESCE: &str = "/volt/quiesce";
/// As [`QUIESCE`], without hooks: before the first command there is no workload.
pub const QUIESCE_WITHOUT_HOOKS: &str = "/volt/quiesce?hooks=no";
/// Mounts disks. The body is a list of [`Mount`](crate::job::Mount). A disk of [`PLACEHOLDER`] bytes is
/// awaited until it has another file.
pub const MOUNT: &str = "/volt/mount";
/// Bytes of a disk that gets its file only once the VM runs.
pub const PLACEHOLDER: u64 = 4096;
/// Thaws the workload. With `?late=N`, the clock is first set N nanoseconds ahead.
pub const THAW: &str = "/volt/thaw";
/// Makes a restored VM one of its own, before its workload is thawed. The body is a [`Wake`], and the answer
/// a [`Woken`].
pub const WAKE: &str = "/volt/wake";
/// Longest body of a call.
pub const LONGEST: usize = 16 << 10;
/// Bytes of entropy of a [`Wake`].
pub const ENTROPY: usize = 64;
/// Most seconds that all hooks of one directory may take.
pub const HOOKS_SECONDS: u64 = 10;
/// Most milliseconds that the workload may take to freeze.
pub const FREEZE_MS: u64 = 1000;

/// A frozen workload.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Frozen {
    /// The control groups, as paths below that of the root group.
    pub frozen: Vec<String>,
}

/// The facts that a restored VM does not know.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Wake {
    /// Random bytes, in hexadecimal digits: twice [`ENTROPY`] of them.
    pub entropy: String,
    /// Nanoseconds since 1970.
    pub now: u64,
    /// The host name, if it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The machine id, if it changes: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// Whether hooks run.
    #[serde(default = "usually")]
    pub hooks: bool,
}

fn usually() -> bool {
    true
}

/// A restored VM whose workload can be thawed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Woken {
    /// The parts that failed, for a person. Without them all, the VM is not as it should be.
    pub problems: Vec<String>,
    /// The VM's clock at the answer, in nanoseconds since 1970. The call was on its way for some time, which
    /// the thaw may add.
    #[serde(default)]
    pub now: u64,
}
