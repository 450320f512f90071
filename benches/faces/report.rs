//! Results, on standard output and in `docs/benchmarks-faces.md`.

use volt_benches::document::{Document, circumstances};
use volt_benches::stats::{Times, percentiles, ratio};
use volt_benches::table::Table;
use volt_benches::turns::Results;
use volt_benches::{Result, command_line};

/// The cost of loads by request beyond that of `--restore`.
const LIMITS: &str = "A load by request costs more than `--restore`. From exec on, the process first becomes \
                      one that waits for requests: it starts its opener, confines itself and makes the \
                      server. Then the request passes the server, a thread for the call, and the opener, \
                      which opens state, memory and disks.";

const DOCUMENT: &str = "docs/benchmarks-faces.md";

/// See the module. Every part is printed at once.
pub struct Report {
    document: Document,
    targets: Vec<Target>,
}

/// A bound, and times that shall be within it, in milliseconds.
struct Target {
    name: &'static str,
    /// The bounds of the median and of the minimum.
    most: [f64; 2],
    found: [f64; 2],
}

impl Report {
    /// Begins with the circumstances.
    pub fn new(load: f64, mib: u64) -> Self {
        let mut document = Document::default();
        document.say(&format!(
            "# API and starts\n\nThe benchmark itself writes this page (`--write-docs`). {}\nRuns of all \
             that a table compares take turns, so a disturbance meets them alike. Compare minima and \
             ratios. The floor is a small static program on musl (`benches/programs/answerer.c`) that \
             answers every request with one text. The restored guest has {mib} MiB and writes one byte \
             after another. The page cache is warm.\n",
            circumstances("faces", &command_line::given(), load)
        ));
        Self { document, targets: Vec::new() }
    }

    /// Exec to the first answer.
    pub fn ready(&mut self, results: &Results) {
        self.document.say(
            "## Start of the API\n\nTimes from exec to the answer to a first `GET /`. The client connects \
             as soon as the kernel reports the socket's file.\n",
        );
        self.compare("exec to first answer, ms", results);
        self.aim("API ready after exec", results, "firecracker", |_| 5.0);
    }

    /// `GET /`.
    pub fn requests(&mut self, results: &Results) {
        self.document.say(
            "## Requests\n\nTimes of `GET /` from its first byte sent, or from the call that connects, to \
             the whole answer.\n",
        );
        self.compare_each("GET /, ms", results);
        self.aim("`GET /` without a VM", results, "volt-vmm without a VM, one", |_| 0.2);
        self.aim("`GET /` of a VM that sleeps", results, "volt-vmm with a VM that sleeps, one", |_| 0.2);
    }

    /// Exec to first byte.
    pub fn starts(&mut self, results: &Results) {
        self.document.say(
            "## Start with a snapshot\n\nTimes from exec to the first byte of a restored guest, read from \
             a pipe: by `--restore`, and by the requests of Firecracker's clients (`mem_backend` `File`, \
             `resume_vm`).\n",
        );
        self.compare("exec to first guest byte, ms", results);
        let most = |restore: f64| restore + 0.8;
        self.aim("exec to first byte by requests, beside `--restore` + 0.8", results, "firecracker", most);
    }

    /// Request to first byte.
    pub fn loads(&mut self, results: &Results) {
        self.document.say(
            "## Load into a process that waits\n\nTimes from the request of Firecracker's clients \
             (`mem_backend` `File`, `resume_vm`) to the first guest byte, read from a pipe, and from a \
             call of the library to the first byte in this process. The library restores a snapshot that is \
             open already, or opens it first, as a request must.\n",
        );
        self.compare("to first guest byte, ms", results);
        let most = |library: f64| 1.1 * library + 0.2;
        self.aim(
            "load, beside 1.1 times a restore + 0.2",
            results,
            "PUT /snapshot/load, one connection",
            most,
        );
        let opening = results.get(1..).unwrap_or_default().to_vec();
        self.aim(
            "load, beside 1.1 times an opening and a restore + 0.2",
            &opening,
            "PUT /snapshot/load, one connection",
            most,
        );
    }

    /// All targets of the parts that were measured.
    pub fn targets(&mut self) {
        let mut table = Table::new(&["target, ms", "at most", "p50", "p50 met", "at most", "min", "min met"]);
        for Target { name, most, found } in &self.targets {
            let mut cells = vec![(*name).to_owned()];
            for (most, found) in most.iter().zip(found) {
                let verdict = if found <= most { "yes" } else { "no" };
                cells.extend([format!("{most:.3}"), format!("{found:.3}"), verdict.to_owned()]);
            }
            table.row(cells);
        }
        self.document.say("## Targets\n");
        self.document.say(&table.to_string());
        self.document.say(LIMITS);
    }

    /// Replaces the document.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&self) -> Result<()> {
        self.document.write(DOCUMENT)
    }

    /// Notes whether the one whose name begins so is within a bound, which may depend on the first result.
    fn aim(&mut self, name: &'static str, results: &Results, of: &str, most: impl Fn(f64) -> f64) {
        let milliseconds =
            |times: &Times| [50, 0].map(|percent| times.percentile(percent).as_secs_f64() * 1e3);
        let found = results.iter().find(|(name, _)| name.starts_with(of));
        if let (Some((_, reference)), Some((_, times))) = (results.first(), found) {
            let most = milliseconds(reference).map(most);
            self.targets.push(Target { name, most, found: milliseconds(times) });
        }
    }

    /// A table of all beside the first.
    fn compare(&mut self, title: &str, results: &Results) {
        self.table(title, results, results.len());
    }

    /// A table of groups of three, each beside its first.
    fn compare_each(&mut self, title: &str, results: &Results) {
        self.table(title, results, 3);
    }

    fn table(&mut self, title: &str, results: &Results, group: usize) {
        let columns = [title, "runs", "min", "p50", "p90", "p99", "p50 / first", "min / first"];
        let mut table = Table::new(&columns);
        for group in results.chunks(group) {
            let (_, first) = &group[0];
            for (number, (name, times)) in group.iter().enumerate() {
                let mut cells = vec![name.clone(), times.len().to_string()];
                cells.extend(percentiles(times));
                if number > 0 {
                    cells.push(format!("{:.2}", ratio(times.percentile(50), first.percentile(50))));
                    cells.push(format!("{:.2}", ratio(times.min(), first.min())));
                }
                table.row(cells);
            }
        }
        self.document.say(&table.to_string());
    }
}
