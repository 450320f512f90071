//! A socket between host and guest (virtio 1.2, section 5.10), with the conventions of Firecracker's: the host connects to a
//! unix socket and says `CONNECT <port>`; where the guest connects to port N of the host, `<socket>_N` listens.
//!
//! Connections are the host's and do not outlive the process: after a restore the guest is told that they are gone.

use serde::{Deserialize, Serialize};

use super::chain::Buffers;
use super::watch::Watch;
use super::{Broken, Cause, Io, Kind, Next, VirtioDevice};
use crate::config::devices::VsockConfig;
use crate::error::{Error, Result};
use crate::persist::Persist;

mod caller;
mod connection;
mod credit;
mod host;
#[cfg(test)]
mod hostile_tests;
mod packet;
mod reset;
mod stream;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use host::Host;
use reset::{Reset, Seen};
use table::Table;

/// Queues.
const RX: usize = 0;
const TX: usize = 1;
const EVENT: usize = 2;
/// `VIRTIO_VSOCK_F_STREAM`
const F_STREAM: u64 = 1;

/// The device.
#[derive(Debug)]
pub struct Vsock {
    // Configuration.
    cid: u64,
    // Glue.
    table: Table,
    // Volatile.
    reset: Reset,
}

/// What the guest was told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockState {
    guest_cid: u64,
    transport_reset_pending: bool,
}

impl Vsock {
    /// Listens at the configured socket.
    ///
    /// # Errors
    /// Something else listens there, or the host has no descriptor left.
    pub fn open(config: &VsockConfig) -> Result<Self> {
        let host = Host::listen(&config.socket)?;
        let cid = config.cid.into();
        let table =
            Table::new(host, cid).map_err(|source| Error::host("watch the vsock's connections", source))?;
        Ok(Self { cid, table, reset: Reset::Settled })
    }

    /// Has something done when a connection is established, whoever began it.
    pub fn at_connection(&mut self, act: impl FnOnce() + Send + 'static) {
        self.table.at_connection(act);
    }

    /// Gives the guest what there is for it, for one turn, without an interrupt.
    fn give(&mut self, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        let memory = io.ram.guest();
        let queue = &mut io.queues[RX];
        let (mut given, mut next) = (0, Next::Wait);
        queue.hush(memory)?;
        while self.table.has_packet() {
            if given == queue.size() {
                next = Next::Again;
                break;
            }
            let Some(chain) = queue.pop(memory)? else {
                if queue.listen(memory)? {
                    queue.hush(memory)?;
                    continue;
                }
                break;
            };
            let (head, mut room) = (chain.head, chain.writable);
            if room.len() <= packet::LEN {
                return Err(Broken("a buffer to receive in that has no room for data"));
            }
            let mut front: Buffers<'_> = room.take(packet::LEN);
            let Some(header) = self.table.give(&room) else {
                queue.unpop();
                break;
            };
            front.write(&header.bytes());
            queue.put(memory, head, packet::LEN + header.len as usize)?;
            given += 1;
        }
        Ok(next)
    }
}

impl VirtioDevice for Vsock {
    fn kind(&self) -> Kind {
        Kind { id: 19, queues: &[256, 256, 64] }
    }

    fn features(&self) -> u64 {
        F_STREAM
    }

    fn config(&self) -> Vec<u8> {
        self.cid.to_le_bytes().to_vec()
    }

    fn begin(&mut self, _: &mut Io<'_>, watch: &Watch) -> std::result::Result<(), Broken> {
        use rustix::event::epoll::EventFlags;
        watch
            .add(self.table.events(), 0, EventFlags::IN)
            .map_err(|_| Broken("the host cannot watch its connections"))
    }

    fn work(&mut self, cause: Cause, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        if cause != Cause::Notified {
            self.table.look();
        }
        match self.reset.look(io, EVENT)? {
            Seen::Clear => {}
            Seen::Told => {
                self.table.clear();
                return Ok(Next::Again);
            }
            Seen::Busy(next) => return Ok(next),
        }
        let taken = io.serve_quietly(TX, |chain| self.table.take(chain).map(|()| 0))?;
        let turns = [taken, self.table.let_in(), self.give(io)?];
        io.announce()?;
        let later = turns.iter().find(|next| matches!(next, Next::At(_))).copied().unwrap_or(Next::Wait);
        Ok(if turns.contains(&Next::Again) { Next::Again } else { later })
    }

    fn reset(&mut self) {
        self.table.clear();
        self.reset = Reset::Settled;
    }
}

impl Persist for Vsock {
    type State = VsockState;

    fn save(&self) -> Result<VsockState> {
        let Self { cid, table: _, reset } = self;
        Ok(VsockState { guest_cid: *cid, transport_reset_pending: reset.is_pending() })
    }

    /// Another CID than the guest's takes effect with the event that is pending from now on, if it was not before.
    fn restore(&mut self, state: &VsockState) -> Result<()> {
        let VsockState { guest_cid, transport_reset_pending: _ } = state;
        if *guest_cid != self.cid {
            log::info!("vsock: the guest's CID was {guest_cid} and becomes {}", self.cid);
        }
        self.table.clear();
        self.reset = Reset::Pending;
        Ok(())
    }
}
