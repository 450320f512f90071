//! VMs of one image that run at once.

use std::ffi::OsString;
use std::fs;

use volt_benches::held::{Host, share_kib, unique_kib};
use volt_benches::image_host::{ImageHost, ImageOptions};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};

/// See the module. Dropped, they are killed.
pub struct Vms<'a> {
    host: &'a ImageHost,
    options: &'a ImageOptions,
    /// Whether they are paused while they have nothing to do.
    paused: bool,
    count: usize,
}

impl<'a> Vms<'a> {
    /// Begins without VMs.
    pub fn new(host: &'a ImageHost, options: &'a ImageOptions, paused: bool) -> Self {
        Self { host, options, paused, count: 0 }
    }

    /// Pauses or resumes a VM, if they are paused.
    fn tell(&self, act: &str, vm: &str) -> Result<()> {
        if self.paused { self.host.output([act, vm]).map(drop) } else { Ok(()) }
    }

    fn words(&self, first: &[&str], last: &[&str]) -> Vec<OsString> {
        let words = first.iter().map(OsString::from).chain(self.options.shape());
        words.chain([OsString::from(&self.options.image)]).chain(last.iter().map(OsString::from)).collect()
    }

    /// Makes the warm snapshot.
    pub fn make_warm(&self) -> Result<()> {
        self.host.output(self.words(&["image", "warm"], &[])).map(drop)
    }

    /// Starts more, up to this number.
    pub fn start(&mut self, count: usize) -> Result<()> {
        while self.count < count {
            let name = name(self.count);
            let first = ["run", "--detach", "--name", &name];
            self.host.output(self.words(&first, &["sleep", "1000000"]))?;
            self.count += 1;
            self.tell("pause", &name)?;
        }
        Ok(())
    }

    /// Runs the command in each. Returns its output.
    pub fn read(&self, command: &[String]) -> Result<String> {
        let mut said = None;
        for number in 0..self.count {
            let vm = name(number);
            self.tell("resume", &vm)?;
            let words = ["exec", &vm].into_iter().chain(command.iter().map(String::as_str));
            let output = self.host.output(words)?;
            self.tell("pause", &vm)?;
            let first = said.get_or_insert_with(|| output.clone());
            if *first != output {
                return Err(format!("the VMs read different files: {first}, {output}"));
            }
        }
        said.ok_or_else(|| "no VM runs".to_owned())
    }

    /// Adds a row with the memory of all.
    pub fn row(&self, moment: &str, before: Host, table: &mut Table) -> Result<()> {
        let processes = self.processes()?;
        if processes.len() < self.count {
            return Err(format!("{} VMs have {} processes", self.count, processes.len()));
        }
        let taken = Host::now()?.since(before);
        let of_all = |kib: fn(u32) -> Result<u64>| processes.iter().map(|pid| kib(*pid)).sum::<Result<u64>>();
        let (unique, share) = (of_all(unique_kib)?, of_all(share_kib)?);
        let each = |kib: i64| format!("{:.1}", kib as f64 / 1024.0 / self.count as f64);
        let per_vm = format!("{:.1}", processes.len() as f64 / self.count as f64);
        let of_share = |kib: u64| each(kib.cast_signed());
        table.row([
            moment.to_owned(),
            self.count.to_string(),
            per_vm,
            of_share(unique),
            of_share(share),
            each(taken.kernel),
            each(taken.taken),
        ]);
        Ok(())
    }

    /// Processes with the environment of this benchmark's volt-vmm.
    fn processes(&self) -> Result<Vec<u32>> {
        let mark = self.host.mark();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").or_say("list processes")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == mark) {
                found.push(pid);
            }
        }
        Ok(found)
    }
}

impl Drop for Vms<'_> {
    fn drop(&mut self) {
        // The end of the benchmark reports nothing any more.
        let names = (0..self.count).map(name);
        let _ = self.host.output(["rm".to_owned(), "--force".to_owned()].into_iter().chain(names));
    }
}

fn name(number: usize) -> String {
    format!("crowd-{number}")
}

/// A table of the memory of VMs.
pub fn table() -> Table {
    Table::new(&["MiB of each VM", "VMs", "processes", "unique", "Pss", "kernel", "taken"])
}
