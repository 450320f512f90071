//! Registers the agent's side of a program's streams.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::ioctl_fionbio;
use tokio::io::unix::AsyncFd;

use super::input::Input;
use super::ring::Source;
use crate::descriptor::register;
use crate::streams::Ours;

/// Output, and where it comes from.
pub type Output = (Source, Rc<AsyncFd<OwnedFd>>);

/// Splits streams into input and outputs. `on_close` runs when the standard input is closed.
pub fn attach(ours: Ours, on_close: Option<Box<dyn Fn()>>) -> io::Result<(Input, Vec<Output>)> {
    let ready = |descriptor: OwnedFd| {
        ioctl_fionbio(&descriptor, true)?;
        register(descriptor)
    };
    Ok(match ours {
        Ours::Terminal(terminal) => {
            let terminal = Rc::new(ready(terminal)?);
            (Input::pty(Rc::clone(&terminal)), vec![(Source::Pty, terminal)])
        }
        Ours::Pipes { stdin, stdout, stderr } => {
            let outputs =
                vec![(Source::Stdout, Rc::new(ready(stdout)?)), (Source::Stderr, Rc::new(ready(stderr)?))];
            (Input::pipe(stdin.map(ready).transpose()?, on_close), outputs)
        }
    })
}
