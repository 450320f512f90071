//! Linux a year after its snapshot: with `--clock realtime` its clocks jump by the year, with `--clock
//! continue` they do not, and it goes on as usual. The year is faked: the snapshot's time of day is changed.

use std::time::{Duration, Instant};

use volt_tests::{Boot, Guest, Snapshot, generations, needs};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The longest time that a restore and the orders of a test take in a lab on a busy host.
const SLACK: Duration = Duration::from_secs(3600);

/// The period of the guest's timer in milliseconds.
const PERIOD: u64 = 100;

/// The clocks of a guest: time of day and monotonic time.
fn clocks(guest: &mut Guest) -> [Duration; 2] {
    let answer = guest.order("clock");
    ["realtime ", "monotonic "].map(|name| {
        let line = answer.iter().find_map(|line| line.strip_prefix(name));
        Duration::from_nanos(line.expect("a clock").parse().expect("a number"))
    })
}

/// The ends of waits for the periodic timer so far, and the periods of each.
fn woken(guest: &Guest) -> Vec<u64> {
    let output = guest.output();
    let lines =
        output.lines().filter_map(|line| line.trim_end().strip_prefix("woken ")?.split_once(" expired "));
    lines.filter_map(|(_, expired)| expired.parse().ok()).collect()
}

/// A guest with a clock source, an interrupt controller and a number of vCPUs.
struct Case {
    what: String,
    before: [Duration; 2],
    snapshot: Snapshot,
}

impl Case {
    /// Takes the snapshot, as if a year ago.
    fn new(boot: Boot<'_>, clocksource: &str, irqchip: &str, vcpus: u32) -> Self {
        // Without invariant TSC, which the lab lacks, Linux doubts that the TSCs of several processors agree.
        let trust = if clocksource == "tsc" { " tsc=reliable" } else { "" };
        let words = format!("clocksource={clocksource}{trust}");
        let mut guest = boot.cmdline_words(&words).irqchip(irqchip).vcpus(vcpus).start();
        guest.wait_until_ready();
        let current = guest.order("read /sys/devices/system/clocksource/clocksource0/current_clocksource");
        assert_eq!(current.concat(), clocksource, "{irqchip}, {vcpus} vCPUs: {}", guest.output());
        guest.order("watch-clock");
        guest.order(&format!("periods {PERIOD}"));
        let before = clocks(&mut guest);
        let snapshot = guest.snapshot().copy();
        drop(guest);
        snapshot.edit(|state| {
            let realtime = &mut state["machine"]["clock"]["realtime"];
            *realtime = (realtime.as_u64().expect("a time") - YEAR.as_nanos() as u64).into();
        });
        Self { what: format!("{clocksource}, {irqchip}, {vcpus} vCPUs"), before, snapshot }
    }

    /// The clocks of a restored guest once they have jumped, and how far they moved. A kernel before Linux
    /// 6.10 multiplies the jump in 64 bits until its timer has taken it over (docs/snapshots.md): a processor
    /// that reads its clocks before the first tick sees a time between that of the snapshot and the right
    /// one.
    fn jumped(&self, guest: &mut Guest, jump: Duration, what: &str) -> [[Duration; 2]; 2] {
        const READS: usize = 600;
        for read in 1..=READS {
            let after = clocks(guest);
            let moved =
                [0, 1].map(|clock| after[clock].checked_sub(self.before[clock]).expect("a clock went back"));
            assert!(moved.iter().all(|moved| *moved < jump + SLACK), "{what}: a clock moved by {moved:?}");
            if moved.iter().all(|moved| *moved >= jump) {
                return [after, moved];
            }
            println!("{what}: at read {read}, before a tick, the clocks had moved by {moved:?}");
            guest.order("sleep 100");
            guest.next_line("slept 100 took ");
        }
        panic!("{what}: the clocks did not jump within {READS} waits for a tick");
    }

    /// Restores with `--clock mode`. The clocks jump by `jump`.
    fn restore(&self, mode: &str, jump: Duration) {
        let what = format!("{}, --clock {mode}", self.what);
        let began = Instant::now();
        let mut guest = self.snapshot.restore_as(&["--clock", mode]);
        let [after, moved] = self.jumped(&mut guest, jump, &what);
        println!("{what}: the clocks moved by {moved:?}, and answered after {:?}", began.elapsed());
        // All processors work, and the guest has time to complain.
        guest.order("load 1");
        guest.wait_for("loaded 1");
        guest.order("sleep 3000");
        let slept: u64 = guest.next_line("slept 3000 took ").parse().expect("milliseconds");
        assert!((3000..60_000).contains(&slept), "{what}: slept {slept} ms");
        let ran = clocks(&mut guest)[1] - after[1];
        let woken = woken(&guest);
        let most = (ran + moved[1] - jump).as_millis() as u64 / PERIOD + 2;
        println!("{what}: the timer woke {} times, {} expected at most", woken.len(), most);
        assert!(
            !woken.is_empty() && woken.len() as u64 <= most,
            "{what}: the timer woke {} times",
            woken.len()
        );
        let output = guest.output();
        for complaint in ["went back", "stall", "lockup", "Call Trace", "unstable", "hung"] {
            assert!(!output.contains(complaint), "{what}: {complaint}: {output}");
        }
    }
}

/// Boots a guest and restores it with both values of `--clock`. The project's kernel has a split interrupt
/// controller, and the stock kernel, which looks for soft lockups, the host kernel's.
fn passes_a_year(clocksource: &str, irqchip: &str, vcpus: u32) {
    let boot = if irqchip == "split" { Boot::linux() } else { Boot::linux_of("VOLT_STOCK_KERNEL") };
    let case = Case::new(boot, clocksource, irqchip, vcpus);
    case.restore("continue", Duration::ZERO);
    case.restore("realtime", YEAR);
}

/// Whether all cases run, as with `scripts/test.sh --full`.
fn is_full() -> bool {
    generations() >= 100
}

#[test]
fn kvmclock_guests_pass_a_year() {
    needs!(linux, stock_kernel, tsc);
    passes_a_year("kvm-clock", "split", 4);
    if is_full() {
        for (irqchip, vcpus) in [("split", 1), ("kernel", 4), ("kernel", 1)] {
            passes_a_year("kvm-clock", irqchip, vcpus);
        }
    }
}

#[test]
fn tsc_guests_pass_a_year() {
    needs!(linux, stock_kernel, tsc);
    passes_a_year("tsc", "kernel", 1);
    if is_full() {
        for (irqchip, vcpus) in [("kernel", 4), ("split", 4), ("split", 1)] {
            passes_a_year("tsc", irqchip, vcpus);
        }
    }
}
