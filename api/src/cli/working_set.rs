//! What a restored guest touches first, recorded or read ahead: options of a restore.

use clap::Args;
use volt_vmm::RecordUntil;

#[derive(Clone, Debug, Default, Args)]
pub(super) struct WorkingSetArgs {
    /// Record which pages the guest touches until MARKER, and keep that beside the snapshot: later restores read them ahead. MARKER is
    /// console (it has written a whole line), vsock (a connection is established), a time (500ms, 2s), or api (PUT /v1/vm/record, which
    /// ends any). A VM that is recorded is slow
    #[arg(long, value_name = "MARKER", requires_if("api", "api_socket"))]
    pub(super) record: Option<RecordUntil>,

    /// Do not read ahead what was recorded
    #[arg(long)]
    pub(super) no_prefetch: bool,
}
