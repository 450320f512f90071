//! The RPC service `process.Process`.

use std::rc::Rc;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};

use super::follow::follow;
use super::process::{Process, Reader};
use super::spawn;
use super::table::Table;
use crate::connect::call::{answer, failed, header};
use crate::connect::{Call, Code, EventSender, RpcError};
use crate::farewell::TellsEnd;
use crate::messages::process::{
    Empty, ListResponse, ProcessInput, SelectRequest, SendInputRequest, SendSignalRequest, StartRequest,
    StreamInputRequest, UpdateRequest,
};
use crate::reply::{Reply, empty};

/// The header of offsets in a command's output.
///
/// A request of Connect with it replays the output from that offset, as far as the ring has it. Its response
/// names the offset of the first byte that follows. Without it, Connect begins with output that comes later,
/// and finds only running commands.
pub const OFFSET: HeaderName = HeaderName::from_static("volt-offset");

/// The header that tells one agent of a VM from the next one, whose offsets begin again at 0. A request of
/// Connect with that of another agent replays everything.
const INSTANCE: HeaderName = HeaderName::from_static("volt-agent");
/// The header of a stream of input that ends the command's input.
const CLOSE: &str = "volt-close";

/// Serves a method. `None` means an unknown one.
pub async fn serve(commands: &Rc<Table>, method: &str, mut call: Call) -> Option<Reply> {
    let form = call.form;
    if matches!(method, "Start" | "Connect" | "StreamInput") && !form.streaming {
        return Some(empty(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let reply = match method {
        "Start" => start(commands, call).await.unwrap_or_else(|error| failed(form, &error)),
        "Connect" => connect(commands, call).await.unwrap_or_else(|error| failed(form, &error)),
        "List" => {
            let request = call.message::<Empty>().await;
            answer(form, request.map(|_| ListResponse { processes: commands.list() }))
        }
        "Update" => answer(form, update(commands, &mut call).await),
        "StreamInput" => answer(form, stream_input(commands, &mut call).await),
        "SendInput" => answer(form, send_input(commands, &mut call).await),
        "SendSignal" => answer(form, send_signal(commands, &mut call).await),
        "CloseStdin" => answer(form, close_stdin(commands, &mut call).await),
        _ => return None,
    };
    Some(reply)
}

async fn start(commands: &Rc<Table>, mut call: Call) -> Result<Reply, RpcError> {
    let request = call.message::<StartRequest>().await?;
    let user = commands.setup.caller(&call.headers)?;
    // The command's time goes on if the client leaves, so it belongs to the command.
    let timeout = call.timeout().filter(|timeout| !timeout.is_zero());
    let process = spawn::start(commands, &user, request, timeout)?;
    Ok(stream(Reader::new(process, Some(0)), &call, None))
}

async fn connect(commands: &Rc<Table>, mut call: Call) -> Result<Reply, RpcError> {
    let request = call.message::<SelectRequest>().await?;
    let selector = request.process.as_ref();
    let reader = match header(&call.headers, OFFSET.as_str()) {
        None => Reader::new(commands.find(selector)?, None),
        Some(offset) => {
            let offset = offset.parse().map_err(|_| {
                RpcError::new(Code::InvalidArgument, format!("the header {OFFSET} is no number"))
            })?;
            let is_of_another = header(&call.headers, INSTANCE.as_str())
                .is_some_and(|instance| instance != std::process::id().to_string());
            Reader::new(commands.find_any(selector)?, Some(if is_of_another { 0 } else { offset }))
        }
    };
    let timeout = call.timeout().filter(|timeout| !timeout.is_zero());
    let is_main = commands.is_main(reader.process());
    let mut reply = stream(reader, &call, timeout);
    if is_main {
        reply.extensions_mut().insert(TellsEnd);
    }
    Ok(reply)
}

fn stream(reader: Reader, call: &Call, timeout: Option<std::time::Duration>) -> Reply {
    let (events, mut reply) = EventSender::new(call.form);
    reply.headers_mut().insert(OFFSET, HeaderValue::from(reader.offset()));
    reply.headers_mut().insert(INSTANCE, HeaderValue::from(std::process::id()));
    tokio::task::spawn_local(follow(reader, events, call.keepalive(), timeout));
    reply
}

async fn update(commands: &Table, call: &mut Call) -> Result<Empty, RpcError> {
    let request = call.message::<UpdateRequest>().await?;
    let process = commands.find(request.process.as_ref())?;
    if let Some(size) = request.pty.and_then(|pty| pty.size) {
        process.input.resize(&size)?;
    }
    Ok(Empty {})
}

async fn send_input(commands: &Table, call: &mut Call) -> Result<Empty, RpcError> {
    let request = call.message::<SendInputRequest>().await?;
    let process = commands.find(request.process.as_ref())?;
    send(&process, request.input.as_ref(), call).await
}

/// Writes a stream of input. With the header [`CLOSE`], its end is the end of the command's input.
async fn stream_input(commands: &Table, call: &mut Call) -> Result<Empty, RpcError> {
    let mut process: Option<Rc<Process>> = None;
    while let Some(request) = call.next::<StreamInputRequest>().await? {
        if let Some(start) = request.start {
            process = Some(commands.find(start.process.as_ref())?);
        }
        if let Some(data) = request.data {
            let Some(process) = &process else {
                return Err(RpcError::new(Code::InvalidArgument, "input comes before the start event"));
            };
            send(process, data.input.as_ref(), call).await?;
        }
    }
    if let Some(process) = process.filter(|_| header(&call.headers, CLOSE).is_some()) {
        process.input.close().await?;
    }
    Ok(Empty {})
}

/// Writes input within the time of the call.
async fn send(process: &Process, input: Option<&ProcessInput>, call: &Call) -> Result<Empty, RpcError> {
    let input = input.ok_or_else(|| RpcError::new(Code::InvalidArgument, "the request has no input"))?;
    let written = process.input.send(input);
    match call.timeout().filter(|timeout| !timeout.is_zero()) {
        None => written.await?,
        Some(timeout) => tokio::time::timeout(timeout, written)
            .await
            .map_err(|_| RpcError::new(Code::DeadlineExceeded, "the command reads no input"))??,
    }
    Ok(Empty {})
}

async fn send_signal(commands: &Table, call: &mut Call) -> Result<Empty, RpcError> {
    let request = call.message::<SendSignalRequest>().await?;
    let process = commands.find(request.process.as_ref())?;
    if !matches!(request.signal, libc::SIGKILL | libc::SIGTERM) {
        let message = format!("signal {} is neither SIGTERM (15) nor SIGKILL (9)", request.signal);
        return Err(RpcError::new(Code::InvalidArgument, message));
    }
    process.signal(request.signal)?;
    Ok(Empty {})
}

async fn close_stdin(commands: &Table, call: &mut Call) -> Result<Empty, RpcError> {
    let request = call.message::<SelectRequest>().await?;
    commands.find(request.process.as_ref())?.input.close().await?;
    Ok(Empty {})
}
