//! The thread of a VM that reads its pager's messages. It looks for another pager when one dies, and ends the
//! VM when none is found or the pager does not answer. It outlives the VM until no pager can act on its
//! memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, Shutdown};

use super::client::ClientState;
use super::connection::PAUSE;
use super::list::listed;
use super::message::{PagerRequest, PagerResponse};
use super::options::deadline_after;
use crate::error::report;
use crate::memory::lazy::faults::Faults;
use crate::memory::lazy::faults::Fetched;
use crate::packets::{receive_until, send};
use crate::sync::lock;

/// Time between two attempts to release threads that wait for unavailable memory.
const LOOK: Duration = Duration::from_millis(20);
/// Number of checks within the patience whether a thread waits for the pager.
const TICKS: u32 = 6;
/// Number of checks without an answer after which a pager counts as silent.
const UNANSWERED: u32 = 4;
/// Shortest time between two checks.
const SHORTEST_TICK: Duration = Duration::from_millis(20);
/// Longest time between two attempts to find another pager.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Reason to stop reading from a connection.
enum WatchEnd {
    /// The connection has ended.
    End,
    /// The pager does not answer, and faults wait.
    Silence,
}

impl ClientState {
    /// Reads the pagers' messages until the VM's memory is gone and no pager can act on it.
    pub(super) fn watch(&self, faults: &Weak<Faults>) {
        while self.watch_one(faults) {}
        self.wait_until_unserved();
    }

    /// Reads one pager's messages until its end. Returns whether another pager follows.
    fn watch_one(&self, faults: &Weak<Faults>) -> bool {
        let Some(socket) = lock(&self.connection).socket.clone() else { return false };
        let end = self.read_messages(&socket, faults);
        // A killed pager leaves no zombie.
        if let Err(error) = self.target.started_ended() {
            log::debug!("{}", report(&error));
        }
        let mut connection = lock(&self.connection);
        if connection.over {
            return false;
        }
        (connection.socket, connection.count) = (None, connection.count + 1);
        self.changed.notify_all();
        if matches!(end, WatchEnd::Silence) {
            drop(connection);
            let why = format!("the pager is unavailable: {}", self.target.silent());
            self.give_up(faults, &why);
            return false;
        }
        connection.served_by.retain(|served| !Arc::ptr_eq(served, &socket));
        drop(connection);
        self.replace(faults)
    }

    fn read_messages(&self, socket: &OwnedFd, faults: &Weak<Faults>) -> WatchEnd {
        let tick = (self.target.options.patience / TICKS).max(SHORTEST_TICK);
        let mut unanswered: Option<u32> = None;
        loop {
            match receive_until::<PagerResponse>(socket, deadline_after(tick)) {
                Ok(Some((said, beside))) => {
                    unanswered = None;
                    self.handle_message(said, beside, faults);
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if lock(&self.connection).over {
                        return WatchEnd::End;
                    }
                    if self.has_fallen_silent(socket, faults, &mut unanswered) {
                        return WatchEnd::Silence;
                    }
                }
                // The process may lack room for a descriptor, which is no reason to lose the pager.
                Err(error) if said_nothing_of_use(&error) => {
                    log::warn!("a message from the pager was lost: {error}");
                }
                Ok(None) | Err(_) => return WatchEnd::End,
            }
        }
    }

    /// Pings a pager that a thread waits for. Returns true if the pager is silent while a fault waits.
    fn has_fallen_silent(
        &self,
        socket: &OwnedFd,
        faults: &Weak<Faults>,
        unanswered: &mut Option<u32>,
    ) -> bool {
        let Some(faults) = faults.upgrade() else { return false };
        let is_waited_for = faults.is_waited_for();
        // A fault that a pager has read becomes visible again only after it repeats.
        faults.requeue_unanswered();
        match unanswered {
            Some(ticks) if *ticks >= UNANSWERED => {
                if lock(&self.connection).completes {
                    lock(&self.connection).completed =
                        Some(PagerResponse::Refused(self.target.silent().to_string()));
                    self.changed.notify_all();
                }
                *unanswered = None;
                is_waited_for
            }
            Some(ticks) => {
                *ticks += 1;
                false
            }
            None => {
                if is_waited_for || lock(&self.connection).completes {
                    let _ = send(socket, &PagerRequest::Ping, None, SendFlags::DONTWAIT);
                    *unanswered = Some(1);
                }
                false
            }
        }
    }

    fn handle_message(&self, said: PagerResponse, beside: Option<OwnedFd>, faults: &Weak<Faults>) {
        match said {
            PagerResponse::Unreadable { start, end, why } => {
                if let Some(faults) = faults.upgrade() {
                    faults.fail(&why);
                    faults.refuse(start..end);
                }
            }
            PagerResponse::Fetched { chunk_len, touched, prefetch, answered } => {
                let ahead = beside.and_then(|list| listed(&list.into(), self.target.memory_len).ok());
                let answered = answered.map(|answered| *answered);
                let fetched = ahead.map(|ahead| Fetched { chunk_len, touched, ahead, prefetch, answered });
                lock(&self.connection).fetched = fetched;
                self.changed.notify_all();
            }
            PagerResponse::NotPrefetched(why) => log::warn!("the pager does not fetch pages ahead: {why}"),
            PagerResponse::Alive => {}
            answer => {
                lock(&self.connection).completed = Some(answer);
                self.changed.notify_all();
            }
        }
    }

    /// Looks for another pager, and ends the VM if none is found in time. Returns whether one was found.
    fn replace(&self, faults: &Weak<Faults>) -> bool {
        let deadline = self.target.deadline();
        let mut pause = PAUSE;
        loop {
            let Some(alive) = faults.upgrade() else { return false };
            let found = self.target.reach(deadline).and_then(|socket| {
                let socket = Arc::new(socket);
                self.serve(&socket, &alive, deadline).map(|()| socket)
            });
            drop(alive);
            let why = match found {
                Ok(socket) => {
                    let mut connection = lock(&self.connection);
                    // The VM may have ended meanwhile.
                    if connection.over {
                        return false;
                    }
                    connection.socket = Some(Arc::clone(&socket));
                    self.changed.notify_all();
                    drop(connection);
                    self.ask_ahead(&socket);
                    return true;
                }
                Err(error) => report(&error),
            };
            if lock(&self.connection).over {
                return false;
            }
            if Instant::now() > deadline {
                let why = format!("the pager has died, and no other could be reached: {why}");
                self.give_up(faults, &why);
                return false;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Releases all threads that wait for memory, as long as there are any.
    fn give_up(&self, faults: &Weak<Faults>, why: &str) {
        lock(&self.connection).over = true;
        self.changed.notify_all();
        while let Some(alive) = faults.upgrade() {
            alive.let_go(why);
            drop(alive);
            thread::sleep(LOOK);
        }
    }

    /// Waits until no pager can act on the VM's memory, and then gives its addresses back. A stopped pager
    /// keeps them.
    fn wait_until_unserved(&self) {
        let connection = lock(&self.connection);
        let waited = self.changed.wait_while(connection, |connection| connection.range.is_none());
        let mut connection = waited.unwrap_or_else(PoisonError::into_inner);
        let (range, served_by) = (connection.range.take(), std::mem::take(&mut connection.served_by));
        connection.socket = None;
        drop(connection);
        for socket in served_by {
            let _ = rustix::net::shutdown(&*socket, Shutdown::Write);
            loop {
                let end = Instant::now() + Duration::from_secs(3600);
                match receive_until::<PagerResponse>(&*socket, end) {
                    Err(error) if said_nothing_of_use(&error) => {}
                    // The connection goes on, whatever the message says.
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
        }
        drop(range);
    }
}

/// Whether a connection continues after this error.
fn said_nothing_of_use(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, TimedOut, UnexpectedEof};
    matches!(error.kind(), InvalidData | TimedOut | UnexpectedEof)
}
