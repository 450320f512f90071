//! VMs that run an image of two layers, with the init of kernel/agent as process 1.

mod ending;
mod frozen_disks;
mod inits;
mod kernels;
mod layers;
mod main_process;
mod names;
mod nat;
mod net_clients;
mod network;
mod policy;
mod ports;
mod processes;
mod quiet;
mod random_numbers;
mod runs;
mod sandbox;
mod traffic;
mod upper;
mod volumes;
mod warm;

use std::fs;
use std::path::{Path, PathBuf};

use volt_job::Job;
use volt_job::ended::LINE;
use volt_job::job::{PATH, Process, Root, Upper};
use volt_kernel::initrd::archive::addition;
use volt_tests::disks::ext4;
use volt_tests::{Boot, Guest, Scratch};

/// Returns a process of root that runs a script.
fn script(text: &str) -> Process {
    Process::new(["/bin/sh", "-c", text])
}

/// Returns a job without the agent and with changes in memory.
fn job(process: Process) -> Job {
    let root = Root { lower: "root".to_owned(), upper: Upper::Memory };
    Job { agent: false, ..Job::new(root, process) }
}

/// Adds the job, and kernel modules, to the initramfs.
fn initramfs(scratch: &Scratch, job: &Job, modules: &[(String, Vec<u8>)]) -> PathBuf {
    let mut bytes = fs::read(std::env::var_os("VOLT_AGENT_INITRD").unwrap()).unwrap();
    let text = serde_json::to_vec(job).unwrap();
    let modules = modules.iter().map(|(path, content)| (path.as_str(), content.as_slice()));
    let files: Vec<_> = modules.chain([(PATH, text.as_slice())]).collect();
    bytes.extend(addition(bytes.len() as u64, &files).unwrap());
    let path = scratch.fresh("initramfs");
    fs::write(&path, bytes).unwrap();
    path
}

/// Describes the boot of a job on an image.
fn boot(scratch: &Scratch, job: &Job) -> Boot<'static> {
    boot_with(Boot::linux(), scratch, job, &[])
}

fn boot_with<'a>(boot: Boot<'a>, scratch: &Scratch, job: &Job, modules: &[(String, Vec<u8>)]) -> Boot<'a> {
    let parts = layers::parts();
    let parts: Vec<_> = parts.iter().map(|part| format!("part={}", part.display())).collect();
    let disk = format!("id=root,{},ro", parts.join(","));
    boot.scratch(scratch).initrd(initramfs(scratch, job, modules)).device(["--disk".to_owned(), disk])
}

/// Makes an upper disk, and the option that gives it to a VM.
fn upper_disk(scratch: &Scratch) -> (PathBuf, [String; 2]) {
    let path = scratch.fresh("upper");
    ext4(&path, 64 << 20, &["upper", "work"]).unwrap();
    (path.clone(), option(&path))
}

fn option(path: &Path) -> [String; 2] {
    ["--disk".to_owned(), format!("id=upper,path={}", path.display())]
}

/// Awaits the end of the VM. Returns the report of the main process, and all output in lines.
fn end(guest: &mut Guest) -> (String, Vec<String>) {
    let ended = guest.next_line(LINE);
    assert_eq!(guest.wait_exit().status, 0, "{}", guest.output());
    (ended, guest.output().lines().map(|line| line.trim_end().to_owned()).collect())
}

/// Runs a process to its end on an image, with changes in memory.
fn run(process: Process) -> (String, Vec<String>) {
    run_job(&job(process))
}

fn run_job(job: &Job) -> (String, Vec<String>) {
    end(&mut boot(&Scratch::new(), job).start())
}
