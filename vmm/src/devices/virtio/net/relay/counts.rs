//! Counts of the relay's events.

/// Events since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RelayCounts {
    /// Connections that began.
    pub opened: u64,
    /// Connections that were refused for want of room.
    pub refused: u64,
    /// Requests whose host was denied.
    pub denied: u64,
    /// Requests that programs could read in different ways.
    pub ambiguous: u64,
}
