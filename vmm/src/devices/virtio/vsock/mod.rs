//! A socket between host and guest (virtio 1.2, section 5.10), with the conventions of Firecracker's. The
//! host connects to a unix socket and sends `CONNECT <port>`. For a connection of the guest to port N of the
//! host, a program listens at `<socket>_N`.
//!
//! Connections belong to the host and do not outlive the process: after a restore the guest is told that
//! they are gone.

use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use super::chain::Buffers;
use super::watch::Watch;
use super::{ChainOutcome, DeviceFailed, DeviceIo, DeviceKind, NextTurn, VirtioDevice, WakeReason};
use crate::config::devices::VsockConfig;
use crate::counters::device::{DeviceOperations, OperationKind};
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

use host::HostSocket;
use reset::{ResetStatus, TransportReset};
use table::ConnectionTable;

/// Numbers of the queues.
const RX: usize = 0;
const TX: usize = 1;
const EVENT: usize = 2;
/// Operations as the counters name them, with the numbers of their queues.
const OPERATIONS: &[OperationKind] = &[
    OperationKind { name: "receive", header: packet::LEN },
    OperationKind { name: "transmit", header: packet::LEN },
    OperationKind::new("event"),
];
/// `VIRTIO_VSOCK_F_STREAM`
const F_STREAM: u64 = 1;

/// A vsock device.
#[derive(Debug)]
pub struct Vsock {
    // Configuration.
    cid: u64,
    // Glue.
    table: ConnectionTable,
    // Volatile.
    reset: TransportReset,
}

/// State that the guest knows.
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
    /// Another process listens there, or the host has no descriptor left.
    pub fn open(config: &VsockConfig) -> Result<Self> {
        let host = HostSocket::listen(&config.socket)?;
        let cid = config.cid.into();
        let table = ConnectionTable::new(host, cid)
            .map_err(|source| Error::host("watch the vsock's connections", source))?;
        Ok(Self { cid, table, reset: TransportReset::Settled })
    }

    /// Removes the socket's file, because the guest has ended.
    pub fn remove_socket(&self) {
        self.table.remove_socket();
    }

    /// Takes a connected stream of this program, which has not named its port yet. Its reads and writes must
    /// not block.
    pub fn add_caller(&mut self, stream: UnixStream) {
        self.table.add_caller(stream, false);
    }

    /// Calls `act` when a connection is established, in whichever direction.
    pub fn at_connection(&mut self, act: impl FnOnce() + Send + 'static) {
        self.table.on_connection(act);
    }

    /// Calls `act` when the first connection of a host program has ended. Calls it at once if one has.
    pub fn at_end_of_connection(&mut self, act: impl FnOnce() + Send + 'static) {
        self.table.on_end(act);
    }

    /// Fills the receive queue for one turn, without an interrupt.
    fn fill_receive_queue(&mut self, io: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        if !self.table.has_packet() {
            // The driver need not notify of buffers that no packet waits for.
            io.queues[RX].disable_notifications(io.ram.guest())?;
            return Ok(NextTurn::Wait);
        }
        let most = io.queues[RX].size().into();
        io.each_chain(RX, most, |chain| {
            let mut room = chain.writable;
            if room.len() <= packet::LEN {
                return Err(DeviceFailed("a receive buffer has no room for data"));
            }
            let mut front: Buffers<'_> = room.take(packet::LEN);
            let Some(header) = self.table.next_packet(&room) else {
                return Ok(ChainOutcome::Kept(NextTurn::Wait));
            };
            front.write(&header.bytes());
            let written = packet::LEN + header.len as usize;
            Ok(match self.table.has_packet() {
                true => ChainOutcome::Done(written),
                false => ChainOutcome::DoneLast(written, NextTurn::Wait),
            })
        })
    }
}

impl VirtioDevice for Vsock {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 19, queues: &[256, 256, 64] }
    }

    fn operations(&self) -> DeviceOperations {
        DeviceOperations { operations: OPERATIONS, queues: None }
    }

    fn features(&self) -> u64 {
        F_STREAM
    }

    fn config(&self) -> Vec<u8> {
        self.cid.to_le_bytes().to_vec()
    }

    fn begin(&mut self, _: &mut DeviceIo<'_>, watch: &Watch) -> std::result::Result<(), DeviceFailed> {
        use rustix::event::epoll::EventFlags;
        watch
            .add(self.table.events(), 0, EventFlags::IN)
            .map_err(|_| DeviceFailed("the host cannot watch the vsock's connections"))
    }

    fn work(
        &mut self,
        cause: WakeReason,
        io: &mut DeviceIo<'_>,
    ) -> std::result::Result<NextTurn, DeviceFailed> {
        let reset = self.reset.check(io, EVENT)?;
        if reset == ResetStatus::ConnectionsLost {
            // Before the next events: a program that connects now loses nothing.
            self.table.drop_connections();
            return Ok(NextTurn::Again);
        }
        if cause != WakeReason::Notified {
            self.table.handle_events();
        }
        if let ResetStatus::InProgress(next) = reset {
            return Ok(next);
        }
        let taken = io.serve_without_interrupt(TX, |chain| self.table.handle_packet(chain).map(|()| 0))?;
        let next = taken.sooner(self.table.accept_callers()).sooner(self.fill_receive_queue(io)?);
        self.table.count(&io.counters.connections);
        io.counters.waits(RX, self.table.has_packet() && next == NextTurn::Wait);
        io.interrupt_if_wanted()?;
        Ok(next)
    }

    fn reset(&mut self) {
        self.table.clear();
        self.reset = TransportReset::Settled;
    }
}

impl Persist for Vsock {
    type State = VsockState;

    fn save(&self) -> Result<VsockState> {
        let Self { cid, table: _, reset } = self;
        Ok(VsockState { guest_cid: *cid, transport_reset_pending: reset.is_pending() })
    }

    /// A CID other than the guest's takes effect with the reset event, which is pending from now on.
    fn restore(&mut self, state: &VsockState) -> Result<()> {
        let VsockState { guest_cid, transport_reset_pending: _ } = state;
        if *guest_cid != self.cid {
            log::info!("vsock: the guest's CID was {guest_cid} and becomes {}", self.cid);
        }
        self.table.clear();
        self.reset = TransportReset::Pending;
        Ok(())
    }
}
