//! The call `/init`, by which a host sets the agent up.

use std::collections::BTreeMap;

use hyper::StatusCode;
use hyper::body::Incoming;
use rustix::time::{ClockId, Timespec, clock_settime};
use serde::Deserialize;

use super::agent::Agent;
use super::body;
use crate::access::same;
use crate::reply::{Failure, Reply, empty};
use crate::time;

/// Longest body.
const LONGEST: usize = 1 << 20;

/// The body. Unknown fields have no effect.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Init {
    env_vars: Option<BTreeMap<String, String>>,
    access_token: Option<String>,
    timestamp: Option<String>,
    default_user: Option<String>,
    default_workdir: Option<String>,
}

/// Takes settings. A token, once set, must come again to change anything.
pub async fn init(agent: &Agent, body: Incoming) -> Result<Reply, Failure> {
    let bad = |why: String| Failure::new(StatusCode::BAD_REQUEST, why);
    let content = body::read(body, LONGEST).await?;
    let init: Init = if content.is_empty() { Init::default() } else { body::parse(&content)? };
    let given = init.access_token.filter(|token| !token.is_empty());
    let now = init.timestamp.map(|text| {
        time::from_text(&text).ok_or_else(|| bad(format!("timestamp {text} is not in RFC 3339's form")))
    });
    let now = now.transpose()?;
    {
        let mut settings = agent.setup.settings.borrow_mut();
        if let Some(token) = &settings.token
            && !given.as_ref().is_some_and(|given| same(given.as_bytes(), token.as_bytes()))
        {
            let why = "accessToken differs from the first one";
            return Err(Failure::new(StatusCode::UNAUTHORIZED, why));
        }
        settings.token = given.or(settings.token.take());
        settings.envs.extend(init.env_vars.unwrap_or_default());
        settings.user = init.default_user.filter(|name| !name.is_empty()).or(settings.user.take());
        settings.workdir = init.default_workdir.filter(|path| !path.is_empty()).or(settings.workdir.take());
    }
    agent.setup.save().map_err(|error| {
        let why = format!("cannot keep the settings for a later agent: {error}");
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, why)
    })?;
    if let (Some((seconds, nanoseconds)), true) = (now, agent.options.set_clock) {
        let now = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        // An agent without the right to set the clock goes on with the clock that it has.
        if let Err(error) = clock_settime(ClockId::Realtime, now) {
            eprintln!("volt-agent: cannot set the clock: {error}");
        }
    }
    Ok(empty(StatusCode::NO_CONTENT))
}
