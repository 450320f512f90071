//! The parts of the device beside its backend, which see frames of the guest and have frames for it.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use volt_policy::Copied;

use super::guard::{Guard, Leftovers};
use super::link_service::LinkService;
use super::metadata::MetadataService;
use super::{DeviceIo, Mac, NextTurn};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Services {
    pub metadata: Option<Box<MetadataService>>,
    pub guard: Option<Box<Guard>>,
    pub link: Option<Box<LinkService>>,
    /// Frames of a guard that has gone.
    pub leftovers: Leftovers,
}

impl Services {
    /// The next frame for the guest that no backend has sent.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        let left = self.leftovers.to_guest.pop_front();
        let of_metadata = left.or_else(|| self.metadata.as_mut()?.next_frame());
        let answer = of_metadata.or_else(|| self.guard.as_mut()?.next_answer());
        answer.or_else(|| self.link.as_mut()?.next_frame())
    }

    /// The next frame for a far side that the device has copied or made.
    pub fn next_unsent(&mut self) -> Option<&Copied> {
        if self.leftovers.to_far.is_empty() {
            return self.guard.as_mut()?.next_unsent();
        }
        self.leftovers.to_far.front()
    }

    /// Forgets that frame.
    pub fn sent(&mut self) {
        if self.leftovers.to_far.pop_front().is_none() {
            self.guard.iter_mut().for_each(|guard| guard.sent());
        }
    }

    /// Takes the news of the resolver.
    pub fn listen(&mut self) {
        self.guard.iter_mut().for_each(|guard| guard.listen());
        self.link.iter_mut().for_each(|service| service.listen());
    }

    /// Works if it is time. Returns whether frames wait for the guest.
    pub fn work(&mut self, now: Instant) -> bool {
        let mut answers = self.metadata.as_mut().is_some_and(|service| service.work(now));
        if let Some(guard) = &mut self.guard {
            guard.work(now);
            answers |= guard.has_answers();
        }
        answers |= !self.leftovers.to_guest.is_empty();
        answers | self.link.as_mut().is_some_and(|service| service.work(now))
    }

    /// The time of the next [`Services::work`]. A guard's is asked for once its frames are sent.
    pub fn next_turn(&mut self, now: Instant) -> NextTurn {
        let of_metadata = self.metadata.as_mut().map_or(NextTurn::Wait, |service| service.next_turn(now));
        let of_link = self.link.as_mut().map_or(NextTurn::Wait, |service| service.next_turn(now));
        of_metadata.sooner(of_link)
    }

    /// Counts the work since the last call.
    pub fn count(&mut self, io: &DeviceIo<'_>) {
        self.metadata.iter_mut().for_each(|service| io.counters.metadata.add(&service.take_work()));
        self.link.iter_mut().for_each(|service| io.counters.policy.add(&service.take_work()));
        self.guard.iter_mut().for_each(|guard| io.counters.policy.add(&guard.take_work()));
    }

    /// Forgets what they know of a driver. The device has this address.
    pub fn reset(&mut self, mac: Mac) {
        self.leftovers.to_guest.clear();
        self.metadata.iter_mut().for_each(|service| service.reset());
        self.guard.iter_mut().for_each(|guard| guard.begin_anew(mac));
        self.link.iter_mut().for_each(|service| service.reset());
    }

    /// The descriptor of the resolver that works for the guest, and its number.
    pub fn resolver(&self) -> Option<(u64, BorrowedFd<'_>)> {
        let of_guard = self.guard.as_ref().and_then(|guard| guard.descriptor());
        of_guard.or_else(|| self.link.as_ref()?.descriptor())
    }
}
