//! Forks of a running VM into processes of their own. The parent captures its VM once; each child is this program once more, spawned
//! and never forked, with one end of a socket as its standard input.
//!
//! ```text
//!   parent: order ──> child: makes an empty VM, while the parent captures its own
//!     └─ handover ──> child: restored, stands still ── ready ──┐
//!   ┌──────────────────────── all are ready <──────────────────┘
//!   └─ go ──> child: runs ── ready ──> all run ── stay ──> child: on its own, whatever becomes of the parent
//! ```
//!
//! All or nothing: a child that has not heard "stay" when its socket ends goes, with every file it made. So if one fails, the parent
//! closes the sockets of all; and if the parent dies, so does what is not whole yet.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use volt_vmm::VmShape;
use volt_vmm::config::Overrides;

pub(crate) mod children;
pub(crate) mod parent;

/// The subcommand of a fork's child.
pub(crate) const FORKED: &str = "forked";

/// The arguments of a fork's child. They are always the same, because setting up clap takes longer than exec.
pub(crate) fn child_arguments(api_socket: &Path, id: &str) -> [OsString; 5] {
    let word = OsString::from;
    [word(FORKED), word("--api-socket"), api_socket.into(), word("--id"), word(id)]
}

/// Longest message beside the handover.
const LONGEST: u32 = 1 << 20;

/// What a child is told first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// That of the VM which is to come.
    pub(crate) shape: VmShape,
    pub(crate) overrides: Overrides,
    /// Whether its guest stands still until somebody resumes it.
    pub(crate) paused: bool,
}

/// What a parent says later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    Go,
    Stay,
}

/// What a child answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Ready,
    Failed(String),
}

/// One end of the socket between the two.
#[derive(Debug)]
pub(crate) struct Link(pub(crate) UnixStream);

impl Link {
    pub(crate) fn say(&mut self, what: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(what)?;
        let len = u32::try_from(text.len()).ok().filter(|len| *len <= LONGEST);
        let len = len.ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
        self.0.write_all(&[&len.to_le_bytes(), &text[..]].concat())
    }

    /// Reads no byte more than the message has: what follows it may come with descriptors.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len);
        if len > LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut text = vec![0; len as usize];
        self.0.read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_to_its_end_and_no_further() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut near, mut far) = (Link(near), Link(far));
        near.say(&Word::Go).unwrap();
        near.say(&Answer::Failed("no tap".to_owned())).unwrap();
        near.0.write_all(b"rest").unwrap();
        assert_eq!(far.hear::<Word>().unwrap(), Word::Go);
        assert!(matches!(far.hear::<Answer>().unwrap(), Answer::Failed(why) if why == "no tap"));
        let mut rest = [0; 4];
        far.0.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"rest");
        near.0.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(far.hear::<Word>().unwrap_err().kind(), ErrorKind::InvalidData);
        drop(near);
        assert_eq!(far.hear::<Word>().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
