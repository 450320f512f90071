//! Cost of each part of strict confinement, alone in a process.

use std::thread;
use std::time::{Duration, Instant};

use volt_benches::stats::{Times, percentiles};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};
use volt_vmm::internal::isolation::{Namespace, limits, namespaces, root};

use super::child;

/// A part of confinement, its times, and why the host refuses it.
struct Act {
    name: String,
    /// Namespaces that the process enters before, which is not measured.
    before: Vec<Namespace>,
    measure: Box<dyn Fn() -> Result<Duration>>,
    times: Times,
    refused: Option<String>,
}

impl Act {
    fn new(name: &str, before: &[Namespace], measure: impl Fn() -> Result<Duration> + 'static) -> Self {
        let (name, before, measure) = (name.to_owned(), before.to_vec(), Box::new(measure));
        Self { name, before, measure, times: Times::default(), refused: None }
    }

    fn run(&mut self) {
        let Self { before, measure, .. } = self;
        match child::measure(|_| enter(before).and_then(|()| measure())) {
            Ok(took) => self.times.add(took),
            Err(error) => self.refused = Some(error),
        }
    }
}

/// Measures all parts, a run of each in turn. A part that the host refuses has no times.
pub fn measure(runs: usize, pause: Duration) -> Table {
    let mut parts = parts();
    for _ in 0..runs {
        for part in parts.iter_mut().filter(|part| part.refused.is_none()) {
            part.run();
            // The kernel removes the namespaces meanwhile.
            thread::sleep(pause);
        }
    }
    table(&parts)
}

fn parts() -> Vec<Act> {
    // A process without privileges has them in a user namespace alone.
    let is_privileged = child::measure(|_| enter(&[Namespace::Uts]).map(|()| Duration::ZERO)).is_ok();
    let rights: &[_] = if is_privileged { &[] } else { &[Namespace::User] };
    let with = |kind: Namespace| [rights, &[kind]].concat();
    let mut parts = Vec::new();
    for kind in Namespace::ALL {
        let before = if kind == Namespace::User { &[] } else { rights };
        parts.push(Act::new(kind.name(), before, move || timed(|| enter(&[kind]))));
    }
    parts.push(Act::new("all seven", &[], || timed(|| enter(&Namespace::ALL))));
    parts.push(Act::new("fork", &[], fork));
    parts.push(Act::new("fork into a pid namespace", &with(Namespace::Pid), fork));
    parts.push(Act::new("fork into all seven", &Namespace::ALL, fork));
    let empty_root = || timed(|| root::enter_empty().or_say("enter an empty root"));
    parts.push(Act::new("empty root", &with(Namespace::Mount), empty_root));
    let limit = || limits::limit().and_then(|()| limits::drop_capabilities()).or_say("limit a process");
    parts.push(Act::new("rlimits and capabilities", &[], move || timed(limit)));
    parts
}

fn enter(wanted: &[Namespace]) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    match &namespaces::enter(wanted).or_say("enter namespaces")?[..] {
        [] => Ok(()),
        [(kind, errno), ..] => Err(format!("a namespace of kind {}: {errno}", kind.name())),
    }
}

fn timed(act: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    act()?;
    Ok(start.elapsed())
}

/// The time until a child runs.
fn fork() -> Result<Duration> {
    child::measure(|start| Ok(start.elapsed()))
}

fn table(parts: &[Act]) -> Table {
    let mut table = Table::new(&["alone in a process, ms", "runs", "min", "p50", "p90", "p99", "refused"]);
    for Act { name, times, refused, .. } in parts {
        let mut cells = vec![name.clone(), times.len().to_string()];
        cells.extend(if times.is_empty() { Default::default() } else { percentiles(times) });
        cells.extend(refused.clone());
        table.row(cells);
    }
    table
}
