//! Helps a guest take in a jump of its clocks, such as by the time since its snapshot.
//!
//! Linux adds a jump to its time in steps of about a second, with interrupts off: tens of millions of steps
//! for a year. One processor does that. The others go on with the time before the jump, and start new grace
//! periods of RCU by it, which are a year late once all have the new time. The notice that the guest was
//! paused (KVM_KVMCLOCK_CTRL) makes its watchdogs start anew, but each processor takes it only once, before
//! the jump is added. The notice is therefore repeated.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::kvm::vcpu::Vcpu;
use crate::run_control::Control;
use crate::sandbox::ThreadKind;
use crate::sync::lock;
use crate::threads;

/// The least jump that Linux's watchdogs may mistake for a stall: they wait 20 s and more.
pub(super) const LEAST: Duration = Duration::from_secs(10);
/// The time between two notices.
const INTERVAL: Duration = Duration::from_millis(50);
/// The time after the start in which the guest gets notices. Linux needs less than a second for a year on
/// present processors.
const PERIOD: Duration = Duration::from_secs(30);

/// Starts the thread that notifies the vCPUs of a guest that is about to run, until the guest ends or
/// [`PERIOD`] has passed.
///
/// # Errors
/// The host refuses a thread.
pub(super) fn follow(control: Arc<Control>, vcpus: Vec<Weak<Mutex<Vcpu>>>) -> Result<()> {
    let body = move || {
        let begin = Instant::now();
        while begin.elapsed() < PERIOD && !control.wait_end_for(INTERVAL) {
            control.between_turns(|| vcpus.iter().filter_map(Weak::upgrade).for_each(|vcpu| notify(&vcpu)));
        }
    };
    threads::spawn(ThreadKind::Worker, "clock", body).map(drop)
}

fn notify(vcpu: &Mutex<Vcpu>) {
    if let Err(error) = lock(vcpu).notify_paused() {
        log::debug!("cannot tell the guest of its jump: {error}");
    }
}
