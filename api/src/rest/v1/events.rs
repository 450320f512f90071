//! `GET /v1/vm/events`: the VM's events as they happen, as server-sent events (HTML standard, section 9.2).

use std::convert::Infallible;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event as SentEvent, KeepAlive};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::Refusals;
use crate::rest::Api;
use crate::rest::error::Fault;
use crate::rest::events::{Event, VmState};

/// A client: what it is told first, and where the rest comes from. Nothing follows the end.
struct Client {
    first: Option<Event>,
    rest: Option<Receiver<Event>>,
}

/// Follow the VM: its present state, then each event until its end
#[utoipa::path(
    get,
    path = "/v1/vm/events",
    tag = "vm",
    responses((status = 200, description = "events, each with the JSON of `Event` as its data",
        content_type = "text/event-stream", body = Event), Refusals),
)]
pub(super) async fn events(
    State(api): State<Api>,
) -> Result<Sse<impl Stream<Item = Result<SentEvent, Infallible>>>, Fault> {
    // Subscribed before the state is read, so no change is missed.
    let rest = Some(api.events.subscribe()?);
    api.events.tell_progress(&api.operations);
    let state = VmState::from(api.slot.peek().map(|vm| vm.state()));
    let client = Client { first: Some(Event::State { state }), rest };
    Ok(Sse::new(unfold(client, next)).keep_alive(KeepAlive::default()))
}

async fn next(mut client: Client) -> Option<(Result<SentEvent, Infallible>, Client)> {
    let event = match client.first.take() {
        Some(event) => event,
        None => received(client.rest.as_mut()?).await?,
    };
    if matches!(event, Event::Ended { .. }) {
        client.rest = None;
    }
    let data = serde_json::to_string(&event).unwrap_or_else(|_| unreachable!("it has text keys alone"));
    Some((Ok(SentEvent::default().event(event.name()).data(data)), client))
}

/// The next event that the client has not missed.
async fn received(rest: &mut Receiver<Event>) -> Option<Event> {
    loop {
        match rest.recv().await {
            Ok(event) => return Some(event),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return None,
        }
    }
}
