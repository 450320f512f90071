//! Streams a command's events to one client.

use std::time::Duration;

use tokio::time::sleep;

use super::process::Reader;
use super::ring::Source;
use crate::connect::{Code, EventSender, RpcError};
use crate::messages::process::{DataEvent, Empty, EventResponse, ProcessEvent, StartEvent};

/// The metadata of a stream's end that has the status as shells have it. E2B's clients take no notice of it.
const STATUS: &str = "volt-status";

/// Sends all events from the reader's place to the end of the command, or until the client leaves.
///
/// A `timeout` ends the stream and not the command.
pub async fn follow(reader: Reader, events: EventSender, keepalive: Duration, timeout: Option<Duration>) {
    let over = async {
        match timeout {
            Some(timeout) => sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = send_all(&reader, &events, keepalive) => ended,
        () = over => Reached::TimedOut,
    };
    // Its place would hold the command's output back while the last message waits for the client.
    drop(reader);
    match ended {
        Reached::Gone => {}
        Reached::Whole(status) => events.end_with(STATUS, &status.to_string()).await,
        Reached::TimedOut => {
            events.end(Some(&RpcError::new(Code::DeadlineExceeded, "the call's time is over"))).await;
        }
    }
}

/// The end of a stream.
enum Reached {
    Gone,
    /// The command ended, with this status as shells have it.
    Whole(u8),
    TimedOut,
}

async fn send_all(reader: &Reader, events: &EventSender, keepalive: Duration) -> Reached {
    let process = reader.process();
    let start = ProcessEvent { start: Some(StartEvent { pid: process.id() }), ..Default::default() };
    if events.send(&response(start)).await.is_err() {
        return Reached::Gone;
    }
    loop {
        let changed = process.changed();
        if let Some((source, bytes)) = reader.take() {
            let event = ProcessEvent { data: Some(data(source, bytes)), ..Default::default() };
            if events.send(&response(event)).await.is_err() {
                return Reached::Gone;
            }
            continue;
        }
        if let Some(end) = process.end() {
            if process.timed_out() {
                return Reached::TimedOut;
            }
            let event = ProcessEvent { end: Some(end.event), ..Default::default() };
            if events.send(&response(event)).await.is_err() {
                return Reached::Gone;
            }
            return Reached::Whole(end.status);
        }
        tokio::select! {
            () = changed => {}
            () = events.closed() => return Reached::Gone,
            () = sleep(keepalive) => {
                let event = ProcessEvent { keepalive: Some(Empty {}), ..Default::default() };
                if events.send(&response(event)).await.is_err() {
                    return Reached::Gone;
                }
            }
        }
    }
}

fn response(event: ProcessEvent) -> EventResponse {
    EventResponse { event: Some(event) }
}

fn data(source: Source, bytes: Vec<u8>) -> DataEvent {
    let mut event = DataEvent::default();
    match source {
        Source::Stdout => event.stdout = Some(bytes),
        Source::Stderr => event.stderr = Some(bytes),
        Source::Pty => event.pty = Some(bytes),
    }
    event
}
