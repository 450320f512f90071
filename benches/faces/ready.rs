//! From exec to the answer to the first request.

use std::time::Duration;

use volt_benches::Result;
use volt_benches::api::request;
use volt_benches::turns::{Contender, Results, in_turn};

use crate::programs::{Program, Programs};

/// Measures all programs.
///
/// # Errors
/// One of them does not answer.
pub fn measure(programs: &Programs, runs: usize, pause: Duration) -> Result<Results> {
    let get = request("GET", "/", "");
    let starting = |name: &str, program| {
        let get = &get;
        Contender::new(name, move || {
            let mut serving = programs.start(program)?;
            serving.api.ask(get)?;
            Ok(serving.started.elapsed())
        })
    };
    let contenders = vec![
        starting("a static program that answers", Program::Answerer),
        starting("volt-vmm --api-socket", Program::VoltVmm),
        starting("firecracker --api-sock", Program::Firecracker),
    ];
    in_turn(contenders, runs, pause)
}
