//! Calls of volt-vmm's own: the main process, and signals.

use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use serde::Deserialize;
use volt_job::StartMain;
use volt_job::start::{LONGEST, Started};

use super::agent::Agent;
use super::body;
use crate::connect::RpcError;
use crate::group_signal;
use crate::messages::process::ProcessSelector;
use crate::processes::main_process::Refused;
use crate::reply::{Failure, Reply, empty, json};

/// Longest body of a signal.
const SHORT: usize = 4 << 10;

/// Starts the main process. The connection ends with the answer, so that a client has it before the VM's end.
pub async fn start_main(agent: &Agent, body: Incoming) -> Reply {
    let mut reply = match started(agent, body).await {
        Ok(reply) => reply,
        Err(failure) => failure.reply(),
    };
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

async fn started(agent: &Agent, body: Incoming) -> Result<Reply, Failure> {
    let start: StartMain = body::json(body, LONGEST).await?;
    let Some(main) = &agent.main else {
        let why = "the main process is not the agent's to start: the job of process 1 has one";
        return Err(Failure::new(StatusCode::CONFLICT, why));
    };
    match main.start(start).await {
        Ok(pid) => Ok(json(StatusCode::OK, &Started { pid })),
        Err(Refused::NotStarted(ended)) => Ok(json(StatusCode::UNPROCESSABLE_ENTITY, &ended)),
        Err(Refused::Taken) => {
            let why = "there is a main process; Connect to it by the tag main";
            Err(Failure::new(StatusCode::CONFLICT, why))
        }
        Err(Refused::Broken(error)) => {
            let why = format!("cannot ask process 1: {error}");
            Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, why))
        }
    }
}

/// The body of a signal. Exactly one of `pid` and `tag` is set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Signal {
    pid: Option<u32>,
    tag: Option<String>,
    signal: i32,
}

/// Sends a signal to the group of a command, or of the main process.
pub async fn signal(agent: &Agent, body: Incoming) -> Result<Reply, Failure> {
    let Signal { pid, tag, signal } = body::json(body, SHORT).await?;
    if !(1..=group_signal::LAST).contains(&signal) {
        let why = format!("signal is {signal}; give a number from 1 to {}", group_signal::LAST);
        return Err(Failure::new(StatusCode::BAD_REQUEST, why));
    }
    let failed = |error: RpcError| Failure::new(error.code.status(), error.message);
    let process = agent.commands.find(Some(&ProcessSelector { pid, tag })).map_err(failed)?;
    process.signal(signal).map_err(failed)?;
    Ok(empty(StatusCode::NO_CONTENT))
}
