//! Answers to `GET /`: on one connection, and on a new one each.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use volt_benches::api::{Connection, request};
use volt_benches::scratch::Scratch;
use volt_benches::turns::{Contender, Results, in_turn};
use volt_benches::{Result, programs as guests};

use crate::programs::{Program, Programs};

/// Measures a process without a VM, one with a VM, and the floor.
///
/// # Errors
/// One of them does not answer.
pub fn measure(programs: &Programs, scratch: &Scratch, requests: usize) -> Result<Results> {
    let [answerer, empty, sleeping] = ["answerer", "empty", "sleeping"].map(|name| programs.socket_of(name));
    let kernel = scratch.program("small-guest", guests::SMALL_GUEST)?;
    let mut run = Command::new(&programs.volt_vmm);
    run.args(["run", "--memory", "16M", "--cmdline", "echo", "--kernel"]).arg(kernel);
    run.arg("--api-socket").arg(&sleeping);
    let _serving = [
        programs.serve(&mut programs.command(Program::Answerer, &answerer), &answerer)?.running,
        programs.serve(&mut programs.command(Program::Firecracker, &empty), &empty)?.running,
        programs.serve(&mut run, &sleeping)?.running,
    ];
    let get = request("GET", "/", "");
    let mut contenders = Vec::new();
    // On connections of their own first: the floor serves one connection at a time.
    let named = [
        ("a static program that answers", &answerer),
        ("volt-vmm without a VM", &empty),
        ("volt-vmm with a VM that sleeps", &sleeping),
    ];
    for (name, socket) in named {
        contenders.push(Contender::new(&format!("{name}, a new connection"), || fresh(socket, &get)));
    }
    let mut results = in_turn(contenders, requests, Duration::ZERO)?;
    let mut contenders = Vec::new();
    for (name, socket) in named {
        let mut api = Connection::open(socket)?;
        let get = &get;
        contenders.push(Contender::new(&format!("{name}, one connection"), move || {
            let start = Instant::now();
            api.ask(get)?;
            Ok(start.elapsed())
        }));
    }
    results.extend(in_turn(contenders, requests, Duration::ZERO)?);
    Ok(results)
}

fn fresh(socket: &Path, get: &[u8]) -> Result<Duration> {
    let start = Instant::now();
    Connection::open(socket)?.ask(get)?;
    Ok(start.elapsed())
}
