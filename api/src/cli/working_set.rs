//! Options of a restore: recording and prefetch of the working set.

use clap::Args;
use volt_vmm::RecordUntil;

#[derive(Clone, Debug, Default, Args)]
pub(super) struct WorkingSetArgs {
    /// Record the working set: the pages that the guest touches until MARKER. Later restores of the snapshot
    /// read them ahead. MARKER is console (the guest has written a line), vsock (a connection is
    /// established), a time (500ms, 2s), or api (PUT /v1/vm/record, which ends any recording). A recording
    /// slows the guest down
    #[arg(long, value_name = "MARKER", requires_if("api", "api_socket"))]
    pub(super) record: Option<RecordUntil>,

    /// Do not read the recorded working set ahead
    #[arg(long)]
    pub(super) no_prefetch: bool,
}
