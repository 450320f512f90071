//! Messages to the kernel over netlink (netlink(7)), of its routing and of its packet filter.
//!
//! No crate serves both without an async runtime, a library of C or the GPL: rtnetlink and nlink need tokio,
//! nftnl and mnl link libraries, rustables is under the GPL, and netlink-bindings lacks masquerading.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// Bytes of a message's header (`nlmsghdr`), and of an attribute's (`nlattr`).
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// The type of an answer: an error, or 0 for success.
const ERROR: u16 = libc::NLMSG_ERROR as u16;
/// Bytes of the answers to one request.
const ANSWERS: usize = 32 << 10;

/// A socket. It belongs to the network namespace of the thread that makes it.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    /// A socket to the kernel's routing.
    pub fn routing() -> io::Result<Self> {
        Self::new(None) // NETLINK_ROUTE is 0
    }

    /// A socket to the kernel's packet filter.
    pub fn filter() -> io::Result<Self> {
        Self::new(Some(NETFILTER))
    }

    fn new(protocol: Option<Protocol>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        Ok(Self(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?))
    }

    /// Sends messages, and returns the first error of the kernel.
    ///
    /// # Errors
    /// The kernel refuses one of them, or answers nothing.
    pub fn ask(&self, messages: &Messages) -> io::Result<()> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.0, &messages.bytes, SendFlags::empty(), &kernel)?;
        let (mut answers, mut first, mut has_answer) = (vec![0; ANSWERS], None, false);
        // The kernel works in the call above, so all answers are here.
        loop {
            let len = match recv(&self.0, &mut answers[..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                received => received?.1.min(answers.len()),
            };
            for status in statuses(&answers[..len]) {
                has_answer = true;
                first = first.or((status != 0).then_some(status));
            }
        }
        match first {
            Some(status) => Err(io::Error::from_raw_os_error(-status)),
            None if has_answer => Ok(()),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The statuses in the kernel's answers.
fn statuses(mut answers: &[u8]) -> Vec<i32> {
    let mut found = Vec::new();
    while let Some(header) = answers.first_chunk::<HEADER>() {
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let status = answers.get(HEADER..HEADER + 4).and_then(|status| status.try_into().ok());
        found.extend(status.map(i32::from_ne_bytes).filter(|_| kind == ERROR));
        answers = answers.get(len.max(HEADER).next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Messages that are sent together.
#[derive(Debug, Default)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    count: u32,
}

impl Messages {
    /// Adds a message with this content behind its header, and calls `attributes` to add more.
    pub fn add(
        &mut self,
        kind: u16,
        flags: libc::c_int,
        content: &[u8],
        attributes: impl FnOnce(&mut Attributes<'_>),
    ) {
        let start = self.bytes.len();
        self.count += 1;
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.count.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(content);
        attributes(&mut Attributes(&mut self.bytes));
        let len = self.bytes.len() - start;
        self.bytes[start..start + 4].copy_from_slice(&(len as u32).to_ne_bytes());
    }
}

/// Attributes at the end of a message, or of an attribute.
#[derive(Debug)]
pub(super) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    /// Adds an attribute with this value.
    pub fn add(&mut self, kind: u16, value: &[u8]) {
        let len = ATTRIBUTE + value.len();
        self.0.extend((len as u16).to_ne_bytes()); // values are short
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len() + len.next_multiple_of(4) - len, 0);
    }

    /// Adds a text, which ends with a zero.
    pub fn text(&mut self, kind: u16, text: &str) {
        self.add(kind, &[text.as_bytes(), &[0]].concat());
    }

    /// Adds an attribute of attributes.
    pub fn nest(&mut self, kind: u16, attributes: impl FnOnce(&mut Attributes<'_>)) {
        self.nest_behind(kind, &[], attributes);
    }

    /// Adds an attribute with this content and attributes behind it.
    pub fn nest_behind(&mut self, kind: u16, content: &[u8], attributes: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.add(kind | libc::NLA_F_NESTED as u16, content);
        attributes(&mut Attributes(self.0));
        let len = self.0.len() - start;
        self.0[start..start + 2].copy_from_slice(&(len as u16).to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_cover_what_lies_within_and_values_are_aligned() {
        let mut messages = Messages::default();
        messages.add(16, libc::NLM_F_ACK, &[9; 4], |all| {
            all.text(3, "ab");
            all.nest(5, |inner| inner.add(1, &[7]));
        });
        messages.add(17, 0, &[], |_| ());
        let expected: [&[u8]; 7] = [
            &[16 + 4 + 8 + 12, 0, 0, 0, 16, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            &[9, 9, 9, 9],
            &[7, 0, 3, 0, b'a', b'b', 0, 0],
            &[12, 0, 5, 0x80],
            &[5, 0, 1, 0, 7, 0, 0, 0],
            &[16, 0, 0, 0, 17, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[],
        ];
        assert_eq!(messages.bytes, expected.concat());
    }

    #[test]
    fn statuses_are_read_from_answers_of_any_length() {
        let answer = |status: i32| {
            let header = [20_u32.to_ne_bytes(), [2, 0, 0, 0], [1, 0, 0, 0], [0; 4]].concat();
            [&header[..], &status.to_ne_bytes()].concat()
        };
        let both = [answer(0), answer(-17)].concat();
        assert_eq!(statuses(&both), [0, -17]);
        for len in 0..both.len() {
            assert!(statuses(&both[..len]).len() <= 1, "{len}");
        }
        let mut without_length = both;
        without_length[0] = 0;
        statuses(&without_length);
    }

    #[test]
    fn kernel_tells_of_a_link_that_is_not_there() {
        let mut messages = Messages::default();
        let mut content = [0; 16];
        content[4..8].copy_from_slice(&0x7fff_0000_u32.to_ne_bytes());
        messages.add(libc::RTM_GETLINK, libc::NLM_F_ACK, &content, |_| ());
        let error = Netlink::routing().unwrap().ask(&messages).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
