//! Work of the metadata service of a network device.

use super::Counter;

/// Counters of the service of one interface.
#[derive(Debug, Default)]
pub struct MetadataCounters {
    frames: Counter,
    dropped_frames: Counter,
    sent_frames: Counter,
    sent_bytes: Counter,
    connections: Counter,
    connections_ended: Counter,
    requests_without_token: Counter,
    requests_with_bad_token: Counter,
}

/// Work of the metadata service of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetadataMetrics {
    /// Frames of the guest for the service.
    pub frames: u64,
    /// Those of them that are dropped, because they have no segment of TCP, or a fragment.
    pub dropped_frames: u64,
    /// Frames to the guest.
    pub sent_frames: u64,
    /// Bytes of these frames.
    pub sent_bytes: u64,
    /// Connections that the guest made.
    pub connections: u64,
    /// Connections that have ended.
    pub connections_ended: u64,
    /// Requests that lacked the token that the service requires.
    pub requests_without_token: u64,
    /// Requests whose token is unknown or too old.
    pub requests_with_bad_token: u64,
}

impl MetadataCounters {
    /// Adds new work.
    pub(crate) fn add(&self, work: &MetadataMetrics) {
        for (counter, metric) in [
            (&self.frames, work.frames),
            (&self.dropped_frames, work.dropped_frames),
            (&self.sent_frames, work.sent_frames),
            (&self.sent_bytes, work.sent_bytes),
            (&self.connections, work.connections),
            (&self.connections_ended, work.connections_ended),
            (&self.requests_without_token, work.requests_without_token),
            (&self.requests_with_bad_token, work.requests_with_bad_token),
        ] {
            counter.add(metric);
        }
    }

    /// The numbers now.
    pub(crate) fn read(&self) -> MetadataMetrics {
        MetadataMetrics {
            frames: self.frames.get(),
            dropped_frames: self.dropped_frames.get(),
            sent_frames: self.sent_frames.get(),
            sent_bytes: self.sent_bytes.get(),
            connections: self.connections.get(),
            connections_ended: self.connections_ended.get(),
            requests_without_token: self.requests_without_token.get(),
            requests_with_bad_token: self.requests_with_bad_token.get(),
        }
    }
}
