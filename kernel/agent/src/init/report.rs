//! The report of the main process's end, to the console and to the host.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use volt_job::Ended;
use volt_job::ended::{LINE, PORT};

use super::console;
use crate::host;

/// How long the host may take to accept the report, and then to read it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reports to both. `shares_console`: the last line of another program may lack its end.
pub(super) fn report(ended: &Ended, shares_console: bool) {
    if shares_console {
        console::line("");
    }
    if let Some(error) = &ended.error {
        console::say(error);
    }
    console::line(&format!("{LINE}{ended}"));
    // Most VMs have no listener, and some no vsock.
    let _ = tell_host(ended);
}

fn tell_host(ended: &Ended) -> std::io::Result<()> {
    let mut stream = File::from(host::connect(PORT, PATIENCE)?);
    stream.write_all(format!("{}\n", serde_json::to_string(ended)?).as_bytes())?;
    // The VM's end would cut off a report that the host has yet to read. The host's end of the stream tells
    // that it has.
    host::end_writing(&stream)?;
    stream.read(&mut [0]).map(|_| ())
}
