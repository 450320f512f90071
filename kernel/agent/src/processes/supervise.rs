//! Waits for the end of a command.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::end;
use super::process::Process;
use super::table::Table;

/// Pause between two looks at a process that is traced.
const RETRY: Duration = Duration::from_millis(20);

/// Waits for a process, and for its output. Ends it when its time is over.
pub async fn supervise(
    commands: Rc<Table>,
    process: Rc<Process>,
    mut child: Child,
    handle: AsyncFd<OwnedFd>,
    timeout: Option<Duration>,
    drained: Vec<oneshot::Receiver<()>>,
) {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let over = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ready = handle.readable() => ready.is_ok(),
        () = over => false,
    };
    if !ended {
        process.time_out();
        let _ = handle.readable().await;
    }
    let status = reap(&mut child).await;
    process.set_exited();
    for pump in drained {
        // Each pump drops its side without a message.
        let _ = pump.await;
    }
    process.set_end(end::of(status));
    commands.finish(&process);
    commands.expire_later();
}

/// Waits for a process that has ended. Its parent has to wait on while a tracer has yet to let it go.
async fn reap(child: &mut Child) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        sleep(RETRY).await;
    }
}
