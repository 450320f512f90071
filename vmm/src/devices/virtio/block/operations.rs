//! Operations of a disk as its counters name them.

use std::time::{Duration, Instant};

use super::request::{BlockRequest, RequestStatus};
use crate::counters::device::{DeviceCounters, DeviceOperations, OperationKind};

/// The operations, in the order of [`operation_of`], and the one queue.
pub(super) const OPERATIONS: DeviceOperations = DeviceOperations {
    operations: &[
        OperationKind::new("read"),
        OperationKind::new("write"),
        OperationKind::new("flush"),
        OperationKind::new("name"),
        OperationKind::new("discard"),
        OperationKind::new("write_zeroes"),
        OperationKind::new("invalid"),
    ],
    queues: Some(&["requests"]),
};

/// Returns the number of a request's operation.
fn operation_of(request: &Result<BlockRequest<'_>, RequestStatus>) -> usize {
    match request {
        Ok(BlockRequest::Read { .. }) => 0,
        Ok(BlockRequest::Write { .. }) => 1,
        Ok(BlockRequest::Flush) => 2,
        Ok(BlockRequest::GetId { .. }) => 3,
        Ok(BlockRequest::Discard(_)) => 4,
        Ok(BlockRequest::WriteZeroes(_)) => 5,
        Err(_) => 6,
    }
}

/// A request that was taken off the queue, for the counters.
#[derive(Clone, Copy, Debug)]
pub struct TakenRequest {
    operation: usize,
    bytes: usize,
    at: Instant,
}

impl TakenRequest {
    /// A request taken at this time.
    pub fn new(request: &Result<BlockRequest<'_>, RequestStatus>, at: Instant) -> Self {
        let bytes = request.as_ref().map_or(0, BlockRequest::bytes) as usize;
        Self { operation: operation_of(request), bytes, at }
    }

    /// Counts the request, which ends now.
    pub fn ended(self, status: RequestStatus, counters: &DeviceCounters) {
        let took: Duration = self.at.elapsed();
        match status {
            RequestStatus::Done => counters.done(self.operation, self.bytes, took),
            RequestStatus::Failed | RequestStatus::Unsupported => counters.failed(self.operation, took),
        }
    }
}
