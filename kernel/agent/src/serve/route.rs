//! Routes requests, and guards them.

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::agent::Agent;
use super::{init, metrics, port, volt};
use crate::access::{check_file, check_token};
use crate::connect::Call;
use crate::files::{compose, download, tree, upload};
use crate::query::Query;
use crate::reply::{Failure, Reply, empty, json};
use crate::{filesystem, processes};

/// Answers a request.
pub async fn respond(agent: Rc<Agent>, request: Request<Incoming>) -> Reply {
    let answered = answer(agent, request).await;
    answered.unwrap_or_else(|failure| failure.reply())
}

async fn answer(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Reply, Failure> {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let token = agent.setup.settings.borrow().token.clone();
    let token = token.as_deref();
    match (&method, path.as_str()) {
        (&Method::GET, "/health") => return Ok(empty(StatusCode::NO_CONTENT)),
        // It checks its body's token.
        (&Method::POST, "/init") => return init::init(&agent, request.into_body()).await,
        (&Method::GET | &Method::POST, "/files") => {
            let query = Query::parse(request.uri().query().unwrap_or_default());
            let operation = if method == Method::GET { "read" } else { "write" };
            check_file(token, request.headers(), &query, operation)?;
            let (parts, body) = request.into_parts();
            return match method {
                Method::GET => download::download(&agent.setup, &query, &parts.headers).await,
                _ => upload::upload(&agent.setup, &query, &parts.headers, body).await,
            };
        }
        _ => check_token(token, request.headers())?,
    }
    match (&method, path.as_str()) {
        (&Method::GET, "/metrics") => metrics::metrics(&agent).map(|found| json(StatusCode::OK, &found)),
        (&Method::GET, "/envs") => Ok(json(StatusCode::OK, &agent.setup.settings.borrow().envs)),
        (&Method::POST, "/files/compose") => {
            let query = Query::parse(request.uri().query().unwrap_or_default());
            compose::compose(&agent.setup, &query, request.into_body()).await
        }
        (&Method::GET | &Method::POST, volt_job::tree::PATH) => {
            let query = Query::parse(request.uri().query().unwrap_or_default());
            let (parts, body) = request.into_parts();
            match method {
                Method::GET => tree::send(&agent.setup, &query, &parts.headers).await,
                _ => tree::receive_tree(&agent.setup, &query, &parts.headers, body).await,
            }
        }
        (&Method::GET, volt_job::port::PATH) => port::open(&agent, request).await,
        (&Method::POST, volt_job::start::PATH) => Ok(volt::start_main(&agent, request.into_body()).await),
        (&Method::POST, "/volt/signal") => volt::signal(&agent, request.into_body()).await,
        (&Method::POST, _) => call(&agent, &path, request).await,
        _ => Err(unknown(&method, &path)),
    }
}

async fn call(agent: &Rc<Agent>, path: &str, request: Request<Incoming>) -> Result<Reply, Failure> {
    let unknown = || unknown(&Method::POST, path);
    let (service, name) = path.trim_start_matches('/').split_once('/').ok_or_else(unknown)?;
    if !matches!(service, "process.Process" | "filesystem.Filesystem") {
        return Err(unknown());
    }
    let call = match Call::new(request) {
        Ok(call) => call,
        Err(reply) => return Ok(*reply),
    };
    let reply = match service {
        "process.Process" => processes::service::serve(&agent.commands, name, call).await,
        _ => filesystem::service::serve(&agent.watchers, name, call).await,
    };
    reply.ok_or_else(unknown)
}

fn unknown(method: &Method, path: &str) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, format!("no call {method} {path}"))
}
