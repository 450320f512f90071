//! Captures a VM at one instant for a snapshot or a fork: its state, and its memory as an immutable base plus
//! pages. The VM pauses for a time that does not grow with its memory.
//!
//! ```text
//!   freeze ──> watch writes ──> copy the private pages ──> copy pages written meanwhile ──┐ the guest runs
//!                                                 ^────────── while they become fewer ────┤
//!   ┌─────────────────────────────────────────────────────────────────────────────────────┘
//!   └─> pause: copy the last pages, save the state ──> resume ──> (a reader of the base writes it out)
//! ```
//!
//! The same passes copy the layers of disks ([`SideCapture`]), so the pause has only the clusters written
//! since the last pass. The first pass copies to the destination. Later passes copy to memory, and from there
//! to the destination once the guest runs on ([`copies`]); layers keep a bounded amount in memory. With a
//! limit on the pause, passes go on until a pause can keep it, or the capture fails ([`limit`]).
//!
//! The page tables tell the private pages, before the pause. KVM's dirty log and this process's own writes
//! ([`crate::memory::own_writes`]) tell the pages written from then on. A page that the guest writes during
//! its copy is copied again.

mod copies;
mod limit;

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use self::copies::{CopyTarget, SpaceOnDisk};
use self::copies::{PageCopies, timed};
use self::limit::{DirtySample, PauseLimit};
use crate::error::{Error, Result};
use crate::machine::shared::{PauseTimes, SharedMachine};
use crate::machine::{Machine, MachineState};
use crate::memory::PAGE;
use crate::memory::dirty::freeze::freeze;
use crate::memory::dirty::populated::{pages_over_complete, private_pages};
use crate::memory::files::memfd::fresh;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use crate::progress::Progress;
use crate::run_control::RunState;
use crate::snapshot::lineage::PagesToCapture;

/// Copying this many pages takes a third of a millisecond, and another pass would leave as many.
const FEW: u64 = 256;
/// The most passes before a pause. The guest may write faster than passes copy.
const MOST_PASSES: u32 = 12;

/// A captured instant.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The file under guest memory. It never changes.
    pub base: Arc<File>,
    /// The pages that differ from the base.
    pub pages: PageSet,
    /// Their content, at their offsets.
    pub copy: File,
    /// Pages that the guest returned to the host, so their content does not matter. They are disjoint from
    /// `pages`.
    pub unneeded: PageSet,
    /// The machine's state, without memory.
    pub state: MachineState,
    /// Times and page counts.
    pub stats: CaptureStats,
}

/// Times and page counts of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaptureStats {
    /// The pause of the vCPUs. Zero for a VM that was paused before.
    pub paused: Duration,
    /// The time before the pause in which the disks accepted no requests and finished those under way. A
    /// limit on the pause covers both times together.
    pub disks_stopped: Duration,
    /// Number of passes while the guest ran.
    pub passes: u32,
    /// Pages copied: those that differ from the base, or the pages of the diff.
    pub pages: u64,
    /// Pages copied in the pause.
    pub pages_in_pause: u64,
    /// Bytes of disks' layers copied in the pause, in pages of 4 KiB.
    pub disk_pages_in_pause: u64,
    /// Pages whose copies stayed in memory until the guest ran on: those written after the first pass began.
    pub pages_in_memory: u64,
    /// The same for disks' layers, in pages: at most 128 MiB for each disk.
    pub disk_pages_in_memory: u64,
}

/// The pages to capture, and the conditions.
pub(crate) struct CaptureRequest<'a> {
    /// The act, for errors.
    pub act: &'static str,
    /// The pages to copy.
    pub pages: &'a PagesToCapture,
    /// The longest pause of the guest.
    pub max_pause: Option<Duration>,
    /// Whether the caller also reads the base under the pages.
    pub reads_base: bool,
    /// Counts the bytes of a base that is fetched, of the first pass, of layers, and of copies that leave
    /// memory. Cancels the capture.
    pub progress: &'a Progress,
}

/// State outside memory that belongs to the same instant, copied in the same passes.
pub(crate) trait SideCapture {
    /// The captured state.
    type Taken;

    /// Copies the bulk into reserved space, while the guest runs.
    fn copy_bulk(&mut self, progress: &Progress) -> Result<()>;

    /// Collects the writes since the last call. Returns the amount left to copy, in pages.
    fn look(&mut self) -> u64;

    /// Bytes copied so far, the bulk included.
    fn copied(&self) -> u64;

    /// Bytes of copies in memory.
    fn held(&self) -> u64;

    /// Copies the rest, to memory if the guest is paused or the rest is small. Stops when `goes_on` returns
    /// false for the number of pages left. Returns whether everything was copied.
    ///
    /// # Errors
    /// The host refuses, or memory or disk space runs out.
    fn pass(&mut self, guest: RunState, goes_on: &dyn Fn(u64) -> bool) -> Result<bool>;

    /// Returns the captured state. Everything is copied and the VM is paused. Called again if the pause took
    /// too long and was repeated.
    fn take(&mut self, machine: &Machine) -> Result<Self::Taken>;
}

/// Captures a VM, with the state `beside` its memory. The caller keeps other captures out. Afterwards, even
/// after an error, `written` contains the pages written since the last capture: reading the dirty log cleared
/// it.
///
/// # Errors
/// The VM has ended, the host refuses, the pause would be too long, or [`Error::Cancelled`]. The VM is as it
/// was, and runs if it did.
pub(crate) fn capture<B: SideCapture>(
    vm: &SharedMachine,
    request: &CaptureRequest<'_>,
    to: CopyTarget<'_>,
    written: &mut PageSet,
    beside: &mut B,
) -> Result<(Capture, B::Taken)> {
    if vm.state() == RunState::Ended {
        return Err(Error::NotNow { act: request.act, state: "has ended" });
    }
    let ram = vm.on_machine(|machine| machine.shell().ram.clone());
    // A base that faults fill never changes. Its holes matter only to readers of the base.
    if request.reads_base || ram.faults().is_none() {
        freeze(&ram, request.progress)?;
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
    let copy = copies.settle(request.progress)?;
    // The copy is whole over a base of zeros in two cases. The base of huge pages is not frozen. The base of
    // memory that a service fills for one VM has holes alone: a reader of the capture would fill them with
    // zeros, and the VM would no longer ask its service after a rewind.
    let is_whole = ram.is_huge() || request.reads_base && ram.own_faults().is_some();
    let base = if is_whole { Arc::new(fresh(ram.len())?) } else { ram.base().file };
    Ok((Capture { base, pages, copy, unneeded, state, stats }, more))
}

/// The machine's state, and the state beside memory.
type Captured<B> = (MachineState, <B as SideCapture>::Taken);

struct Passes<'a, B> {
    vm: &'a SharedMachine,
    beside: &'a mut B,
    ram: &'a GuestRam,
    copies: PageCopies<'a>,
    /// Every page that needed a copy so far.
    pages: PageSet,
    /// Pages that still need a copy, or another one.
    left: PageSet,
    unneeded: PageSet,
    written: &'a mut PageSet,
    /// Pages left beside memory, as of the last sample.
    beside_left: u64,
    /// Time of the last read of the dirty log.
    looked: Instant,
    stats: CaptureStats,
}

impl<B: SideCapture> Passes<'_, B> {
    fn run(&mut self, request: &CaptureRequest<'_>) -> Result<Captured<B>> {
        self.take_first(request)?;
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
                        // Disks work most of the time while the capture waits for a better moment.
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

    /// Copies the bulk. The page tables show pages written until now, so the dirty log so far counts only for
    /// a diff.
    fn take_first(&mut self, request: &CaptureRequest<'_>) -> Result<()> {
        let progress = request.progress;
        self.look()?;
        let before = std::mem::replace(&mut self.left, PageSet::none(self.ram.len()));
        // Read before the page tables: a later write to one of these pages shows there or in the dirty log.
        self.unneeded = self.ram.given();
        // A base that is read was completed before.
        let private = || match request.reads_base {
            true => pages_over_complete(self.ram),
            false => private_pages(self.ram),
        };
        self.pages = match request.pages {
            PagesToCapture::NotBase(None) => private()?,
            PagesToCapture::NotBase(Some(also)) => private()?.and(also),
            PagesToCapture::Written(also) => before.and(also),
        };
        self.copies.reserve(&self.pages, &self.unneeded)?;
        self.beside.copy_bulk(progress)?;
        self.copies.take_first(&self.pages, progress)
    }

    /// Copies pages written meanwhile, while the guest runs, until their number stops falling and fits into
    /// the pause.
    fn pass_until_ready(
        &mut self,
        request: &CaptureRequest<'_>,
        mut limit: Option<&mut PauseLimit>,
    ) -> Result<()> {
        let (mut before, mut enough) = (u64::MAX, false);
        let most = self.stats.passes + MOST_PASSES;
        while self.vm.state() == RunState::Running {
            request.progress.check()?;
            // Without a limit, sampling what the pause will find would only delay it.
            if enough && limit.is_none() {
                break;
            }
            let look = self.look()?;
            if enough && limit.as_ref().is_some_and(|limit| limit.allows(Duration::ZERO, look.left)) {
                break;
            }
            if let Some(error) =
                limit.as_ref().and_then(|limit| limit.error_if_out_of_tries(request.act, look))
            {
                return Err(error);
            }
            self.copies.settle_log()?;
            let go_on = |_| request.progress.check().is_ok();
            let (copied, took) = timed(|| self.take(RunState::Running, 0, go_on));
            if !copied? {
                return Err(Error::Cancelled);
            }
            self.beside_left = 0;
            limit.iter_mut().for_each(|limit| limit.copied(look.left, took));
            self.stats.passes += 1;
            // Another pass gains nothing if this one had no fewer pages than the last.
            enough = look.left <= FEW || look.left >= before || self.stats.passes >= most;
            before = look.left;
        }
        Ok(())
    }

    /// Pauses the guest and captures the rest. Returns the capture, or none if the pause would have exceeded
    /// the limit, and the times for which vCPUs and disks stood still. The vCPUs ran on if the disks took too
    /// long to drain.
    fn pause(
        &mut self,
        act: &'static str,
        limit: Option<&PauseLimit>,
    ) -> Result<(Option<Captured<B>>, PauseTimes)> {
        let vm = self.vm;
        // No limit holds if the owner paused the VM.
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

    /// Adds pages written since the last sample to the pages left.
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
        // Reading a slot's log clears it, so its pages count even if the next slot's log cannot be read.
        self.written.add_all(&pages);
        self.left.add_all(&pages);
        taken
    }

    /// Copies the rest of memory, and then the `beside` pages beside memory.
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
