//! A VM whose first vCPU runs on the caller's thread. Starting a thread takes a twentieth of a restore.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::error::Result;
use crate::machine::{LentVcpu, Machine};
use crate::sandbox;
use crate::sandbox::ThreadKind;
use crate::sync::Latch;
use crate::threads;
use crate::vm::Vm;

/// The guest runs alone for this long, which covers some hundred page faults. Starting a thread takes the
/// lock of the process's mappings, and a restored guest's first page faults take it too.
const GUEST_FIRST: Duration = Duration::from_millis(2);

/// A VM whose first vCPU waits for [`LentVm::run`]. Other threads may use [`LentVm::vm`] before and
/// meanwhile. Dropping it before it ran ends the VM once the last [`Arc`] of the VM goes.
#[derive(Debug)]
pub struct LentVm {
    vm: Arc<Vm>,
    /// Absent if the first vCPU has a thread, as after a boot.
    first_vcpu: Option<LentVcpu>,
}

impl LentVm {
    /// The VM, to control it from another thread.
    #[must_use]
    pub fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// Runs the first vCPU on the calling thread until the guest ends. If the working set tells which pages
    /// the guest will write, the calling thread maps the set before. Meanwhile another thread reads any other
    /// set ahead, gives the guest 2 ms, takes read leases on the snapshot's files, and calls `beside`.
    /// Returns its result once both have ended. A panic in `beside` goes on in the caller.
    ///
    /// `beside` owns the VM: the VM ends when the last [`Arc`] of it is dropped. [`Vm::wait_ending`] tells
    /// how the guest ended. If the process is confined ([`crate::sandbox::confine`]), the calling thread is a
    /// confined vCPU from then on, and the thread of `beside` is a confined worker.
    ///
    /// # Errors
    /// The host gives no thread; the guest has not run then.
    pub fn run<T: Send>(self, beside: impl FnOnce(Arc<Vm>) -> T + Send) -> Result<T> {
        let Self { vm, first_vcpu } = self;
        let pages = first_vcpu.as_ref().and_then(|_| vm.take_pages_to_map());
        let is_mapped = pages.as_ref().map(|_| Latch::default());
        let (mapped, is_parked) = (is_mapped.as_ref(), Latch::default());
        if first_vcpu.is_none() {
            sandbox::confine_this_thread(ThreadKind::Worker);
        }
        thread::scope(|scope| {
            let (kept, wait) = (first_vcpu.clone(), &is_parked);
            let session = threads::spawn_scoped(scope, "session", move || {
                // The lent thread may not close what it would own last. Dropped after the VM, also if a call
                // panics.
                let _outlives = Outlives { kept, until: wait };
                let vm = vm;
                vm.prefetch();
                mapped.into_iter().for_each(Latch::wait);
                thread::sleep(GUEST_FIRST);
                sandbox::confine_this_thread(ThreadKind::Worker);
                vm.hold_files();
                beside(vm)
            })?;
            let opened = OpensAtEnd(&is_parked);
            if let Some(vcpu) = first_vcpu {
                if let Some(pages) = pages {
                    let _opened = mapped.map(OpensAtEnd);
                    pages.map(|range| vcpu.pre_fault(range));
                }
                vcpu.run();
            }
            drop(opened);
            Ok(session.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}

/// Holds a lent vCPU until its thread has let go of it.
struct Outlives<'l> {
    kept: Option<LentVcpu>,
    until: &'l Latch,
}

impl Drop for Outlives<'_> {
    fn drop(&mut self) {
        if self.kept.is_some() {
            self.until.wait();
        }
    }
}

/// Opens a latch when dropped.
struct OpensAtEnd<'l>(&'l Latch);

impl Drop for OpensAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A VM whose vCPUs have threads: [`LentVm::run`] waits for its end.
impl From<Vm> for LentVm {
    fn from(vm: Vm) -> Self {
        let first_vcpu = vm.machine.on_machine(Machine::lent_vcpu);
        Self { vm: Arc::new(vm), first_vcpu }
    }
}
