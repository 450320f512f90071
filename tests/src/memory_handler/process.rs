//! The handler's process, after Firecracker's docs/snapshotting/handling-page-faults-on-snapshot-resume.md.

use std::collections::HashSet;
use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::Value;

use super::Conduct;
use super::userfault::{Message, Userfault};

/// Serves one VM until this process is killed.
pub(super) fn run(conduct: Conduct, socket: &Path, memory: &Path) {
    set_parent_process_death_signal(Some(Signal::KILL)).expect("die with the test");
    let listener = UnixListener::bind(socket).expect("bind a socket");
    println!("listens");
    let (stream, _) = listener.accept().expect("accept a connection");
    match conduct {
        Conduct::Closes => {
            drop(stream);
            println!("closed");
        }
        Conduct::Waits => sleep(),
        Conduct::Serves
        | Conduct::ServesWithoutConnection
        | Conduct::ServesUntilTheEnd
        | Conduct::Ignores => {
            let (text, userfault) = receive(&stream);
            if conduct == Conduct::ServesUntilTheEnd {
                let watched = stream.try_clone().expect("watch the connection");
                std::thread::spawn(move || end_with(watched));
            }
            println!("mappings {text}");
            // Kept open, or not.
            let _stream = (conduct != Conduct::ServesWithoutConnection).then_some(stream);
            let memory = File::open(memory).expect("open the memory");
            Served::new(&text, userfault, memory).serve(conduct);
        }
    }
}

fn sleep() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Receives the mappings and the userfaultfd, which come in one message.
fn receive(stream: &UnixStream) -> (String, OwnedFd) {
    let mut text = [0; 4096];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut text)], &mut beside, RecvFlags::CMSG_CLOEXEC);
    let count = received.expect("receive the mappings").bytes;
    let descriptor = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let text = String::from_utf8(text[..count].to_vec()).expect("text");
    (text, descriptor.expect("a userfaultfd beside the mappings"))
}

/// A mapping: its address, its size, and its offset in the file.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: u64,
    size: u64,
    offset: u64,
}

/// The memory of a VM.
struct Served {
    mappings: Vec<Mapping>,
    page_size: u64,
    userfault: Userfault,
    memory: File,
    /// Addresses of pages that were dropped.
    removed: HashSet<u64>,
}

impl Served {
    fn new(text: &str, userfault: OwnedFd, memory: File) -> Self {
        let told: Value = serde_json::from_str(text).expect("mappings in JSON");
        let told = told.as_array().expect("a list of mappings");
        let number = |mapping: &Value, name: &str| mapping[name].as_u64().expect("a number");
        let mappings = told.iter().map(|mapping| Mapping {
            start: number(mapping, "base_host_virt_addr"),
            size: number(mapping, "size"),
            offset: number(mapping, "offset"),
        });
        let (mappings, page_size) = (mappings.collect(), number(&told[0], "page_size"));
        Self { mappings, page_size, userfault: Userfault(userfault), memory, removed: HashSet::new() }
    }

    fn serve(&mut self, conduct: Conduct) {
        // Faults that an unread event kept from being answered.
        let mut deferred = Vec::new();
        loop {
            if deferred.is_empty() {
                poll(&mut [PollFd::new(&self.userfault, PollFlags::IN)], None).expect("wait for messages");
            }
            let mut faults = std::mem::take(&mut deferred);
            // All are read first: no page can be filled while an event waits.
            while let Some(message) = self.userfault.read().expect("read a message") {
                match message {
                    Message::Fault(address) => faults.push(address),
                    Message::Removed(start, end) => {
                        println!("removed {start:#x} {end:#x}");
                        self.removed.extend((start..end).step_by(self.page_size as usize));
                    }
                }
            }
            if conduct == Conduct::Ignores {
                println!("ignored {}", faults.len());
                continue;
            }
            deferred = faults.into_iter().filter(|fault| !self.answer(*fault)).collect();
        }
    }

    /// Answers a fault. Returns whether the page is there.
    fn answer(&self, address: u64) -> bool {
        let page = address / self.page_size * self.page_size;
        let is_removed = self.removed.contains(&page);
        println!("{} {page:#x}", if is_removed { "zero" } else { "page" });
        if is_removed && self.page_size == 4096 {
            return self.userfault.zero(page, self.page_size).expect("map a zero page");
        }
        let mut bytes = vec![0; self.page_size as usize];
        if !is_removed {
            let within = |mapping: &&Mapping| (mapping.start..mapping.start + mapping.size).contains(&page);
            let mapping = self.mappings.iter().find(within).expect("a fault in a mapping");
            let offset = mapping.offset + page - mapping.start;
            self.memory.read_exact_at(&mut bytes, offset).expect("read the memory");
        }
        self.userfault.copy(page, &bytes).expect("copy a page")
    }
}

/// Ends this process at the end of the connection.
fn end_with(mut connection: UnixStream) {
    let _ = connection.read(&mut [0]);
    std::process::exit(1);
}
