//! Moves output from a pipe or a terminal into the ring.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::{Errno, ioctl_fionread, read};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::consume_budget;

use super::attach::Output;
use super::process::Process;
use super::ring::Source;

const BUFFER: usize = 16 << 10;

/// Most output that the kernel holds for a terminal: 64 KiB on their way, and 4 KiB to read.
const TERMINAL: usize = (64 + 4) << 10;

/// Starts a task for each output. They tell when all output of the ended process is in the ring.
pub fn pump_all(process: &Rc<Process>, outputs: Vec<Output>) -> Vec<oneshot::Receiver<()>> {
    let start = |(source, output)| {
        let (done, drained) = oneshot::channel();
        tokio::task::spawn_local(pump(Rc::clone(process), output, source, done));
        drained
    };
    outputs.into_iter().map(start).collect()
}

/// Moves output until its end, or until the process has ended and all that it wrote is in the ring.
///
/// Descendants may hold the descriptor after that. Their output is dropped, but their writes succeed.
/// Dropping `drained` tells the supervisor.
async fn pump(
    process: Rc<Process>,
    output: Rc<AsyncFd<OwnedFd>>,
    source: Source,
    drained: oneshot::Sender<()>,
) {
    let mut buffer = vec![0; BUFFER];
    loop {
        consume_budget().await;
        // A change after this line wakes, so it comes before the looks at the process.
        let changed = process.changed();
        if process.exited() {
            break;
        }
        if !process.has_room() {
            changed.await;
            continue;
        }
        tokio::select! {
            () = changed => {}
            ready = output.readable() => {
                let Ok(mut ready) = ready else { return };
                match ready.try_io(|output| Ok(read(output.get_ref(), &mut buffer[..])?)) {
                    Ok(Ok(0)) => return,
                    Ok(Ok(length)) => process.push(source, &buffer[..length]),
                    Ok(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    // A terminal whose other side is closed gives EIO.
                    Ok(Err(_)) => return,
                    // The descriptor was not ready.
                    Err(_) => {}
                }
            }
        }
    }
    if drain(&process, &output, source, &mut buffer).await {
        drop(process);
        drop(drained);
        discard(&output, &mut buffer).await;
    }
}

/// Moves the output that an ended process has left, and no more: descendants may write on without an end.
/// Returns whether they may.
async fn drain(process: &Process, output: &AsyncFd<OwnedFd>, source: Source, buffer: &mut [u8]) -> bool {
    let mut left = match source {
        // The kernel counts a part alone.
        Source::Pty => TERMINAL,
        _ => ioctl_fionread(output.get_ref()).map_or(0, |left| left as usize),
    };
    while left > 0 {
        consume_budget().await;
        let changed = process.changed();
        if !process.has_room() {
            changed.await;
            continue;
        }
        let most = buffer.len().min(left);
        match read(output.get_ref(), &mut buffer[..most]) {
            Ok(0) => return false,
            Ok(length) => {
                process.push(source, &buffer[..length]);
                left -= length;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(_) => return false,
        }
    }
    true
}

async fn discard(output: &AsyncFd<OwnedFd>, buffer: &mut [u8]) {
    while let Ok(mut ready) = output.readable().await {
        consume_budget().await;
        match ready.try_io(|output| Ok(read(output.get_ref(), &mut *buffer)?)) {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::Pid;
    use tokio::task::LocalSet;
    use tokio::time::timeout;

    use super::*;
    use crate::messages::process::ProcessConfig;
    use crate::processes::attach::attach;
    use crate::processes::input::Input;
    use crate::streams::{Ours, pipes};

    #[tokio::test(flavor = "current_thread")]
    async fn descendant_that_writes_on_does_not_delay_the_end() {
        let (Ours::Pipes { stdout, stderr, .. }, _theirs) = pipes(false, 0).unwrap() else { unreachable!() };
        // The other side of a pipe, by its name in /proc.
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&stdout));
        let mut writer = std::fs::OpenOptions::new().write(true).open(name).unwrap();
        let (_, outputs) = attach(Ours::Pipes { stdin: None, stdout, stderr }, None).unwrap();
        let stdout = outputs.into_iter().take(1).collect();
        std::thread::spawn(move || while std::io::Write::write_all(&mut writer, &[b'y'; 4096]).is_ok() {});
        let input = Input::pipe(None, None);
        let process = Process::new(Pid::from_raw(7).unwrap(), ProcessConfig::default(), None, input);
        LocalSet::new()
            .run_until(async {
                let [drained] = pump_all(&process, stdout).try_into().unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
                process.set_exited();
                let ended = timeout(Duration::from_secs(5), drained).await;
                assert!(ended.is_ok(), "the end waits for a descendant");
            })
            .await;
    }
}
