//! The router's part of the device, behind which a kernel forwards packets: it answers DHCP, solicitations of
//! routers and, in a VM without a policy, questions for names. Nothing listens on the host.
//!
//! ```text
//!  guest ──> DHCP, router solicitation ──link_answers──> answer ──> guest
//!       └──> question to the resolver  ──Names─────────> answer ──> guest   (over TCP by NameStreams)
//! ```

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use volt_policy::{Answered, Datagram, Judge, reset_for};

use super::denials::Denials;
use super::link_answers::{self, Link, LinkRequest};
use super::name_streams::NameStreams;
use super::names::{Asker, Names, News};
use super::relay::end::TcpChecksum;
use super::{NextTurn, SHORTEST_DELAY};
use crate::counters::policy::PolicyMetrics;

/// Most answers that wait for buffers of the guest.
const MOST_ANSWERS: usize = 64;
/// Time between advertisements of the router, a third of that for which guests believe one.
const BETWEEN_ADVERTISEMENTS: Duration = Duration::from_secs(6 * 60 * 60);
/// Tells the numbers of these resolvers from those of a guard's.
const OF_LINK: u64 = 1 << 63;

/// See the module.
#[derive(Debug)]
pub(super) struct LinkService {
    /// Name of the device, for the log.
    name: String,
    link: Link,
    /// Questions end here. With a policy, they are the guard's.
    answers_questions: bool,
    judge: Judge,
    names: Names,
    streams: NameStreams,
    /// When the router advertises itself again. It does so for a guest that has solicited it once.
    advertises_at: Option<Instant>,
    /// When the streams have something to do without a frame.
    due: Option<Instant>,
    answers: VecDeque<Vec<u8>>,
    /// Nothing is denied here.
    denials: Denials,
    work: PolicyMetrics,
}

impl LinkService {
    pub fn new(name: &str, link: Link) -> Self {
        Self {
            name: name.to_owned(),
            answers_questions: true,
            judge: Judge::open(),
            names: Names::new(name),
            streams: NameStreams::new(link.mtu),
            link,
            advertises_at: None,
            due: None,
            answers: VecDeque::new(),
            denials: Denials::new(name, Arc::default()),
            work: PolicyMetrics::default(),
        }
    }

    /// Answers questions for names, or leaves them to a guard.
    pub fn answer_questions(&mut self, answers: bool) {
        if self.answers_questions != answers {
            self.answers_questions = answers;
            self.names = Names::new(&self.name);
            self.streams.clear();
        }
    }

    /// Forgets what the driver has asked.
    pub fn reset(&mut self) {
        self.names.clear();
        self.streams.clear();
        (self.due, self.advertises_at) = (None, None);
        self.answers.clear();
    }

    /// Whether the guest has solicited the router.
    pub fn is_solicited(&self) -> bool {
        self.advertises_at.is_some()
    }

    /// Advertises the router at once to a guest that has solicited it before a snapshot.
    pub fn advertise_again(&mut self) {
        self.advertises_at = Some(Instant::now());
    }

    /// Whether a frame of `len` bytes that starts with these is for the service.
    pub fn wants(&self, head: &[u8], len: usize) -> bool {
        match link_answers::request(head, len) {
            Some(LinkRequest::Question) => self.answers_questions,
            request => request.is_some(),
        }
    }

    /// Takes a whole frame of the guest. Its checksum may be the service's to trust.
    pub fn receive(&mut self, frame: &[u8], is_trusted: bool, now: Instant) {
        match link_answers::request(frame, frame.len()) {
            Some(LinkRequest::Question) => self.take_question(frame, is_trusted, now),
            request => {
                if request == Some(LinkRequest::RouterSolicitation) {
                    self.advertises_at = Some(now + BETWEEN_ADVERTISEMENTS);
                }
                self.answer(link_answers::answer(frame, &self.link));
            }
        }
    }

    fn take_question(&mut self, frame: &[u8], is_trusted: bool, now: Instant) {
        let Some((datagram, message)) = Datagram::parse(frame) else {
            let checksum = if is_trusted { TcpChecksum::Trusted } else { TcpChecksum::Verified };
            match self.streams.receive(frame, checksum, now) {
                Some(questions) => self.take_questions(questions, now),
                // It is from before a restore.
                None => self.answer(reset_for(frame)),
            }
            return;
        };
        let asker = Asker::Datagram(Box::new(datagram.clone()));
        let notes = (&self.judge, &self.denials, &mut self.work);
        if let Some(answer) = self.names.take(message, asker, notes, now) {
            self.answer(datagram.answer(&answer));
        }
    }

    /// Takes questions that came over TCP, with the numbers of their connections.
    fn take_questions(&mut self, questions: Vec<(u64, Vec<u8>)>, now: Instant) {
        for (number, message) in questions {
            let notes = (&self.judge, &self.denials, &mut self.work);
            if let Some(answer) = self.names.take(&message, Asker::Stream(number), notes, now) {
                self.streams.answer(number, &answer, now);
            }
        }
    }

    /// Takes the news of the resolver.
    pub fn listen(&mut self) {
        for news in self.names.news(&self.judge, &mut self.work) {
            let News::Answered(Answered { asker, message, truncated, .. }) = news else { continue };
            match asker {
                Asker::Datagram(datagram) => self.answer(datagram.answer(&truncated.unwrap_or(message))),
                Asker::Stream(number) => self.streams.answer(number, &message, Instant::now()),
                Asker::Device => {}
            }
        }
    }

    /// The descriptor that is readable when there is news of the resolver, and its own number.
    pub fn descriptor(&self) -> Option<(u64, BorrowedFd<'_>)> {
        self.names.descriptor().map(|(number, descriptor)| (number | OF_LINK, descriptor))
    }

    /// Works if it is time. Returns whether frames wait for the guest.
    pub fn work(&mut self, now: Instant) -> bool {
        if self.due.is_some_and(|due| due <= now) {
            let questions = self.streams.work(now);
            self.take_questions(questions, now);
        }
        if self.advertises_at.is_some_and(|at| at <= now) {
            self.advertises_at = Some(now + BETWEEN_ADVERTISEMENTS);
            if self.link.has_v6 {
                self.answer(link_answers::advertisement_to_all(&self.link));
            }
        }
        !self.answers.is_empty() || self.streams.has_waiting()
    }

    /// The time of the next [`LinkService::work`].
    pub fn next_turn(&mut self, now: Instant) -> NextTurn {
        // Never at once, and not put off by another turn: as for a guard.
        let waiting = self.due.filter(|due| *due > now);
        let next = self.streams.next_work(now).map(|next| next.max(now + SHORTEST_DELAY));
        self.due = next.map(|next| waiting.map_or(next, |waiting| waiting.min(next)));
        let advertises_at = self.advertises_at.map(|at| at.max(now + SHORTEST_DELAY));
        self.due.into_iter().chain(advertises_at).min().map_or(NextTurn::Wait, NextTurn::At)
    }

    /// Takes the work since the last call.
    pub fn take_work(&mut self) -> PolicyMetrics {
        std::mem::take(&mut self.work)
    }

    /// The next frame to the guest.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.answers.pop_front().or_else(|| self.streams.next_frame())
    }

    /// Keeps a frame for the guest. Without room it is lost, and the guest asks again.
    fn answer(&mut self, answer: Option<Vec<u8>>) {
        self.answers.extend(answer.filter(|_| self.answers.len() < MOST_ANSWERS));
    }
}
