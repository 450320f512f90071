//! The confinement that is in force, kind by kind, as threads found it when they confined themselves.

use std::sync::atomic::{AtomicU8, Ordering};

use serde::Serialize;

use super::{CONFINED, ThreadKind, landlock};
use crate::paths::opener;

/// No thread of the kind was confined.
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Whether the first thread of each kind found itself in a Landlock domain without rights.
static IN_DOMAIN: [AtomicU8; ThreadKind::ALL.len()] =
    [const { AtomicU8::new(UNKNOWN) }; ThreadKind::ALL.len()];

/// The confinement in force for a kind of thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct KindInForce {
    /// Name of the kind ([`ThreadKind::name`]).
    pub kind: &'static str,
    /// Whether a thread of the kind was refused a directory that it tried to list.
    pub landlock: bool,
}

/// The confinement in force for this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct InForce {
    /// Whether the process is confined.
    pub confined: bool,
    /// Whether its threads get filters of system calls. `/proc/PID/task/*/status` tells which have them.
    pub seccomp: bool,
    /// The kinds of thread that this process has confined so far.
    pub kinds: Vec<KindInForce>,
}

/// Returns the confinement in force for this process. The processes beside it are confined afterwards.
#[must_use]
pub fn in_force() -> InForce {
    let Some(confined) = CONFINED.get() else { return InForce::default() };
    opener::greet();
    let found = |kind: ThreadKind| match IN_DOMAIN[kind as usize].load(Ordering::Relaxed) {
        UNKNOWN => None,
        in_domain => Some(KindInForce { kind: kind.name(), landlock: in_domain == YES }),
    };
    let kinds = ThreadKind::ALL.into_iter().filter_map(found).collect();
    InForce { confined: true, seccomp: confined.filters.is_some(), kinds }
}

/// Notes whether the calling thread of `kind` is in a domain. One that inherited a filter of `parent` may not
/// try, and is in its domain too.
pub(super) fn note(kind: ThreadKind, parent: Option<ThreadKind>) {
    let own = &IN_DOMAIN[kind as usize];
    if own.load(Ordering::Relaxed) == UNKNOWN {
        let found = match parent {
            Some(parent) => IN_DOMAIN[parent as usize].load(Ordering::Relaxed),
            None => [NO, YES][usize::from(landlock::is_in_force())],
        };
        own.store(found, Ordering::Relaxed);
    }
}
