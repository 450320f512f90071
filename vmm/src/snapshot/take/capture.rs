//! A VM at one instant, for a snapshot or a fork: its state, and its memory as an immutable base plus pages. The VM runs but for
//! a pause that does not grow with its memory.
//!
//! ```text
//!   freeze ──> watch writes ──> copy the private pages ──> copy those written meanwhile ──┐ the guest runs
//!                                                 ^────────── while they become fewer ────┤
//!   ┌─────────────────────────────────────────────────────────────────────────────────────┘
//!   └─> pause: copy the last of them, save the state ──> resume ──> (the base is written by whoever wants it)
//! ```
//!
//! The layers of disks ([`SideCapture`]) are copied in the same passes: the pause has the clusters that were
//! written since the last one. All but the first copies go to memory, and to the destination once the guest
//! runs on ([`copies`]); of layers, only so much. A limit on the pause makes the passes go on until it can be
//! kept, or gives up ([`limit`]).
//!
//! What is private is found in the page tables, before the pause; what is written from then on, in KVM's dirty log and among the
//! writes of this process ([`crate::memory::own_writes`]). A page that is copied while it is written is copied again.

mod copies;
mod limit;

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use self::copies::{CopyTarget, SpaceOnDisk};
use self::copies::{PageCopies, timed};
use self::limit::{DirtySample, PauseLimit};
use crate::error::{Error, Result};
use crate::machine::running::{PauseTimes, Running};
use crate::machine::{Machine, MachineState};
use crate::memory::PAGE;
use crate::memory::dirty::freeze::freeze;
use crate::memory::dirty::populated::private_pages;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use crate::progress::Progress;
use crate::run_control::RunState;
use crate::snapshot::lineage::PagesToCapture;

/// So many pages left are copied in a third of a millisecond, and as many would be left by another pass.
const FEW: u64 = 256;
/// A guest that writes faster than it can be copied is paused all the same.
const MOST_PASSES: u32 = 12;

/// The instant.
#[derive(Debug)]
pub(crate) struct Capture {
    /// What lies under guest memory. It never changes.
    pub base: Arc<File>,
    /// The pages that are not the base's.
    pub pages: PageSet,
    /// Their content, at their offsets.
    pub copy: File,
    /// Pages whose content the guest does not care for: it has given them back to the host. None of them is among `pages`.
    pub unneeded: PageSet,
    /// All but memory.
    pub state: MachineState,
    /// What it was like.
    pub stats: CaptureStats,
}

/// How a capture went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// How long the vCPUs stood still. Nothing for a VM that was paused before.
    pub paused: Duration,
    /// How long the disks took no requests before that, while they finished those under way. A limit on the
    /// pause is one on both together.
    pub disks_stopped: Duration,
    /// How often pages were copied while the guest ran.
    pub passes: u32,
    /// Pages that were copied: those that were not the base's, or in a diff those that it has.
    pub pages: u64,
    /// Pages that were copied in the pause.
    pub pages_in_pause: u64,
    /// What was copied of disks' layers in the pause, in pages of 4 KiB.
    pub disk_pages_in_pause: u64,
    /// Pages whose copies were held in memory until the guest ran on: those that it wrote after the first pass began.
    pub pages_in_memory: u64,
    /// Pages of disks' layers whose copies were held so, at most 128 MiB for each disk.
    pub disk_pages_in_memory: u64,
}

/// What is captured, and how.
pub(crate) struct CaptureRequest<'a> {
    /// The act, for errors.
    pub act: &'static str,
    /// Pages.
    pub pages: &'a PagesToCapture,
    /// The longest that the guest may stand still.
    pub max_pause: Option<Duration>,
    /// Whether what lies under the pages is read too.
    pub reads_base: bool,
    /// Counts the bytes of the bulk. Cancels the capture.
    pub progress: &'a Progress,
}

/// What belongs to the same instant as memory and is copied beside it, in the same passes.
pub(crate) trait SideCapture {
    /// What it comes to.
    type Taken;

    /// Copies the bulk. The guest runs; room was reserved for it.
    ///
    /// # Errors
    /// The host refuses.
    fn copy_bulk(&mut self) -> Result<()>;

    /// Finds out what was written since the last time, and returns how many pages are to be copied, or how many that comes to.
    fn look(&mut self) -> u64;

    /// Bytes that were copied so far, the bulk's too.
    fn copied(&self) -> u64;

    /// Bytes of copies that are in memory.
    fn held(&self) -> u64;

    /// Copies them: to memory where `guest` stands still or they are few. Stops where `goes_on` says so of
    /// the pages that are left, and returns whether it did not.
    ///
    /// # Errors
    /// The host refuses, or has no memory or no room.
    fn pass(&mut self, guest: RunState, goes_on: &dyn Fn(u64) -> bool) -> Result<bool>;

    /// Takes what is left: everything is copied, and the VM stands still. Again, if the pause took longer than it may.
    ///
    /// # Errors
    /// The host refuses.
    fn take(&mut self, machine: &Machine) -> Result<Self::Taken>;
}

/// Captures a VM, with what is `beside` its memory. Nobody else captures it meanwhile.
/// Whatever comes of it, `written` has the pages afterwards that were written since the VM was captured last: nobody else will hear of
/// them.
///
/// # Errors
/// The VM has ended, the host refuses, or the pause would be too long. The VM is as it was, and runs if it did.
pub(crate) fn capture<B: SideCapture>(
    vm: &Running,
    request: &CaptureRequest<'_>,
    to: CopyTarget<'_>,
    written: &mut PageSet,
    beside: &mut B,
) -> Result<(Capture, B::Taken)> {
    if vm.state() == RunState::Ended {
        return Err(Error::NotNow { act: request.act, state: "has ended" });
    }
    let ram = vm.on_machine(|machine| machine.shell().ram.clone());
    // A base that is filled as it is touched never changes; its holes matter to those who read it.
    if request.reads_base || ram.faults().is_none() {
        freeze(&ram)?;
    }
    vm.on_machine(|machine| machine.shell().watch_writes())?;
    let none = PageSet::none(ram.len());
    let mut passes = Passes {
        vm,
        ram: &ram,
        copies: PageCopies::new(&ram, to)?,
        pages: none.clone(),
        left: none.clone(),
        unneeded: none,
        written,
        beside_left: 0,
        looked: Instant::now(),
        stats: CaptureStats::default(),
        beside,
    };
    let (state, more) = passes.run(request)?;
    let Passes { pages, mut unneeded, stats, copies, .. } = passes;
    unneeded.remove_all(&pages);
    Ok((Capture { base: ram.base().file, pages, copy: copies.settle()?, unneeded, state, stats }, more))
}

/// The state, and what is beside memory.
type Captured<B> = (MachineState, <B as SideCapture>::Taken);

struct Passes<'a, B> {
    vm: &'a Running,
    beside: &'a mut B,
    ram: &'a GuestRam,
    copies: PageCopies<'a>,
    /// All that were ever to be copied.
    pages: PageSet,
    /// Those of them that are still to be copied, or copied again.
    left: PageSet,
    unneeded: PageSet,
    written: &'a mut PageSet,
    /// What is left beside memory, in pages, as of the last look.
    beside_left: u64,
    /// When the guest's writes were asked for last.
    looked: Instant,
    stats: CaptureStats,
}

impl<B: SideCapture> Passes<'_, B> {
    fn run(&mut self, request: &CaptureRequest<'_>) -> Result<Captured<B>> {
        self.take_first(request.pages, request.progress)?;
        let mut limit = request.max_pause.map(PauseLimit::new);
        let (done, stood) = loop {
            self.pass_until_ready(request, limit.as_mut())?;
            if self.vm.state() == RunState::Running {
                self.copies.before_pause()?;
            }
            let (done, stood) = self.pause(request.act, limit.as_ref())?;
            match (done, &mut limit) {
                (Some(done), None) => break (done, stood),
                (Some(done), Some(limit)) if limit.allows(stood.whole(), 0) => break (done, stood),
                (_, Some(limit)) => {
                    if limit.overran(stood) {
                        // Disks work for most of the time while another moment is looked for.
                        std::thread::sleep((stood.disks * 4).min(Duration::from_millis(100)));
                    }
                }
                (None, None) => {}
            }
        };
        self.stats.paused = stood.vcpus;
        self.stats.disks_stopped = stood.disks;
        self.stats.pages = self.pages.len();
        self.stats.pages_in_memory = self.copies.held();
        self.stats.disk_pages_in_memory = self.beside.held() / PAGE;
        Ok(done)
    }

    /// What was written until now is found in the page tables too.
    fn take_first(&mut self, to_capture: &PagesToCapture, progress: &Progress) -> Result<()> {
        self.look()?;
        let before = std::mem::replace(&mut self.left, PageSet::none(self.ram.len()));
        // Before the page tables are read: what is written to one of these afterwards shows there, or in the log.
        self.unneeded = self.ram.given();
        self.pages = match to_capture {
            PagesToCapture::NotBase(None) => private_pages(self.ram)?,
            PagesToCapture::NotBase(Some(also)) => private_pages(self.ram)?.and(also),
            PagesToCapture::Written(also) => before.and(also),
        };
        self.copies.reserve(&self.pages, &self.unneeded)?;
        self.beside.copy_bulk()?;
        self.copies.take_first(&self.pages, progress)
    }

    /// Copies what was written meanwhile, while the guest runs, until it becomes no less and fits into the pause.
    fn pass_until_ready(
        &mut self,
        request: &CaptureRequest<'_>,
        mut limit: Option<&mut PauseLimit>,
    ) -> Result<()> {
        let (mut before, mut enough) = (u64::MAX, false);
        let most = self.stats.passes + MOST_PASSES;
        while self.vm.state() == RunState::Running {
            request.progress.check()?;
            // Without a limit nobody wants to know what the pause will find: another look would only delay
            // it.
            if enough && limit.is_none() {
                break;
            }
            let look = self.look()?;
            if enough && limit.as_ref().is_some_and(|limit| limit.allows(Duration::ZERO, look.left)) {
                break;
            }
            if let Some(error) = limit.as_ref().and_then(|limit| limit.hopeless(request.act, look)) {
                return Err(error);
            }
            self.copies.settle_log()?;
            let (copied, took) = timed(|| self.take(RunState::Running, 0, |_| true));
            copied?;
            self.beside_left = 0;
            limit.iter_mut().for_each(|limit| limit.copied(look.left, took));
            self.stats.passes += 1;
            // No fewer than the last time: there is nothing to be won by another.
            enough = look.left <= FEW || look.left >= before || self.stats.passes >= most;
            before = look.left;
        }
        Ok(())
    }

    /// Gives what was captured in a pause, unless that was going to take too long, and how long the guest
    /// stood still. Its vCPUs did not where its disks took too long to come to rest.
    fn pause(
        &mut self,
        act: &'static str,
        limit: Option<&PauseLimit>,
    ) -> Result<(Option<Captured<B>>, PauseTimes)> {
        let vm = self.vm;
        // Somebody who has paused the VM does not mind.
        let limit = limit.filter(|_| vm.state() == RunState::Running);
        let for_disks = limit.map(|limit| limit.for_disks(self.left.len() + self.beside_left));
        let (done, stood) = vm.paused_within(act, for_disks, |machine, began| {
            self.newly_written(machine)?;
            let beside = self.beside.look();
            self.stats.pages_in_pause = self.left.len();
            let copied_before = self.beside.copied();
            let in_time = |left| limit.is_none_or(|limit| limit.allows(began.elapsed(), left));
            if !in_time(self.left.len() + beside) || !self.take(RunState::Paused, beside, in_time)? {
                return Ok(None);
            }
            let taken = self.beside.take(machine)?;
            self.stats.disk_pages_in_pause = (self.beside.copied() - copied_before).div_ceil(PAGE);
            Ok(Some((machine.save()?, taken)))
        })?;
        Ok((done.flatten(), stood))
    }

    /// Adds what was written since the last time to what is left.
    fn look(&mut self) -> Result<DirtySample> {
        let (vm, before) = (self.vm, self.left.len() + self.beside_left);
        vm.on_machine(|machine| self.newly_written(machine))?;
        self.beside_left = self.beside.look();
        let (left, within) = (self.left.len() + self.beside_left, self.looked.elapsed());
        self.looked = Instant::now();
        Ok(DirtySample { left, written: left.saturating_sub(before), within, passes: self.stats.passes })
    }

    fn newly_written(&mut self, machine: &Machine) -> Result<()> {
        let mut pages = PageSet::none(self.ram.len());
        let taken = machine.shell().take_dirty(&mut pages);
        // What one slot's log gave is gone from it, even where the next one's cannot be read.
        self.written.add_all(&pages);
        self.left.add_all(&pages);
        taken
    }

    /// Copies what is left of memory, and beside it so many pages.
    fn take(&mut self, guest: RunState, beside: u64, goes_on: impl Fn(u64) -> bool) -> Result<bool> {
        self.pages.add_all(&self.left);
        let goes_on_with = |left| goes_on(left + beside);
        let all_of_memory = match guest {
            RunState::Paused => self.copies.take_in_pause(&mut self.left, goes_on_with)?,
            _ => self.copies.take(&mut self.left, goes_on_with)?,
        };
        Ok(all_of_memory && self.beside.pass(guest, &goes_on)?)
    }
}
