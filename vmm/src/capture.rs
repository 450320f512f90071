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
//! What is private is found in the page tables, before the pause; what is written from then on, in KVM's dirty log and among the
//! writes of this process ([`crate::memory::writes`]). A page that is copied while it is written is copied again.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::control::RunState;
use crate::error::{Error, Result};
use crate::machine::{Machine, MachineState};
use crate::memory::freeze::freeze;
use crate::memory::pages::PageSet;
use crate::memory::populated::private_pages;
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use crate::vm::Vm;

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
    pub course: Course,
}

/// How a capture went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// How long the vCPUs stood still. Nothing for a VM that was paused before.
    pub paused: Duration,
    /// How often pages were copied while the guest ran.
    pub passes: u32,
    /// Pages that were copied: those that were not the base's, or in a diff those that it has.
    pub pages: u64,
    /// Pages that were copied in the pause.
    pub pages_in_pause: u64,
}

/// Where pages are copied to.
pub(crate) struct Target<'a> {
    /// An empty file with room for all of the VM's memory.
    pub file: File,
    /// What the error is when it cannot be written.
    pub failed: &'a dyn Fn(io::Error) -> Error,
}

/// Which pages are captured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted<'a> {
    /// All that are not the base's, and these.
    NotBase(Option<&'a PageSet>),
    /// These, and what was written since the VM was captured last.
    WrittenAnd(&'a PageSet),
}

/// Captures a VM. `in_pause` does what else belongs to the same instant, before the state is saved. Nobody else captures it meanwhile.
/// Whatever comes of it, `written` has the pages afterwards that were written since the VM was captured last: nobody else will hear of
/// them.
///
/// # Errors
/// The VM has ended, the host refuses, or `in_pause` fails. The VM is as it was, and runs if it did.
pub(crate) fn capture<T>(
    vm: &Vm,
    act: &'static str,
    (to, wanted): (Target<'_>, Wanted<'_>),
    written: &mut PageSet,
    in_pause: impl FnOnce(&Machine) -> Result<T>,
) -> Result<(Capture, T)> {
    if vm.state() == RunState::Ended {
        return Err(Error::NotNow { act, state: "has ended" });
    }
    let ram = vm.on_machine(|machine| machine.shell().ram.clone());
    freeze(&ram)?;
    vm.on_machine(|machine| machine.shell().watch_writes())?;
    let none = PageSet::none(ram.len());
    let mut passes = Passes {
        vm,
        ram: &ram,
        to: &to,
        pages: none.clone(),
        unneeded: none,
        written,
        course: Course::default(),
    };
    let (state, more) = passes.run(act, wanted, in_pause)?;
    let Passes { pages, mut unneeded, course, .. } = passes;
    unneeded.remove_all(&pages);
    Ok((Capture { base: ram.base().file, pages, copy: to.file, unneeded, state, course }, more))
}

struct Passes<'a> {
    vm: &'a Vm,
    ram: &'a GuestRam,
    to: &'a Target<'a>,
    pages: PageSet,
    unneeded: PageSet,
    written: &'a mut PageSet,
    course: Course,
}

impl Passes<'_> {
    fn run<T>(
        &mut self,
        act: &'static str,
        wanted: Wanted<'_>,
        in_pause: impl FnOnce(&Machine) -> Result<T>,
    ) -> Result<(MachineState, T)> {
        let vm = self.vm;
        // What was written until now is found in the page tables too.
        let before = vm.on_machine(|machine| self.newly_written(machine))?;
        // Before the page tables are read: what is written to one of these afterwards shows there, or in the log.
        self.unneeded = self.ram.given();
        let first = match wanted {
            Wanted::NotBase(None) => private_pages(self.ram)?,
            Wanted::NotBase(Some(also)) => private_pages(self.ram)?.and(also),
            Wanted::WrittenAnd(also) => before.and(also),
        };
        self.take(&first)?;
        let mut left = u64::MAX;
        while vm.state() == RunState::Running && self.course.passes < MOST_PASSES {
            let written = vm.on_machine(|machine| self.newly_written(machine))?;
            let count = written.len();
            self.take(&written)?;
            self.course.passes += 1;
            // No fewer than the last time: there is nothing to be won by another.
            if count <= FEW || count >= left {
                break;
            }
            left = count;
        }
        let (done, paused) = vm.paused_for(act, |machine| {
            let written = self.newly_written(machine)?;
            self.course.pages_in_pause = written.len();
            self.take(&written)?;
            let done = in_pause(machine)?;
            Ok((machine.save()?, done))
        })?;
        self.course = Course { paused, pages: self.pages.len(), ..self.course };
        Ok(done)
    }

    /// What was written since the last time.
    fn newly_written(&mut self, machine: &Machine) -> Result<PageSet> {
        let mut pages = PageSet::none(self.ram.len());
        let taken = machine.shell().take_dirty(&mut pages);
        // What one slot's log gave is gone from it, even where the next one's cannot be read.
        self.written.add_all(&pages);
        taken.map(|()| pages)
    }

    fn take(&mut self, pages: &PageSet) -> Result<()> {
        self.ram.copy_to(pages, &self.to.file).map_err(self.to.failed)?;
        self.pages.add_all(pages);
        Ok(())
    }
}
