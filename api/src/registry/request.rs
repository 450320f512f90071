//! Requests to one registry: with a login where it asks for one, and again where that may help.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{StatusCode, Url};

use super::RegistryError;
use super::endpoint::Endpoint;
use super::token::{Authorization, authorize};

/// Longest time without a byte.
const STALL: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
/// Most attempts of a request, and most of them while no connection is made: the address may be wrong.
const ATTEMPTS: u32 = 5;
const CONNECTIONS: u32 = 2;
/// Longest wait that a registry may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Most bytes of an error's text.
const MESSAGE: usize = 500;

/// Makes a client. `redirects` tells whether it follows redirections.
pub(super) fn client(redirects: Policy) -> Result<Client, RegistryError> {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // It fails only if there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    let agent = concat!("volt-vmm/", env!("CARGO_PKG_VERSION"));
    let client = Client::builder().user_agent(agent).connect_timeout(CONNECT).timeout(STALL);
    client.redirect(redirects).build().map_err(RegistryError::Client)
}

/// Requests to a repository of a registry.
pub(super) struct Requests {
    client: Client,
    /// For logins, which follow no redirection.
    tokens: Client,
    pub(super) endpoint: Endpoint,
    repository: String,
    authorization: Mutex<Option<Authorization>>,
    /// Attempts that are made at most.
    attempts: u32,
    is_cancelled: Arc<AtomicBool>,
}

impl Requests {
    pub(super) fn new(
        clients: [Client; 2],
        endpoint: Endpoint,
        repository: &str,
        is_cancelled: &Arc<AtomicBool>,
    ) -> Self {
        let ([client, tokens], repository) = (clients, repository.to_owned());
        let (authorization, is_cancelled) = (Mutex::default(), Arc::clone(is_cancelled));
        Self { client, tokens, endpoint, repository, authorization, attempts: ATTEMPTS, is_cancelled }
    }

    /// The URL of a path of the repository. A redirection may lead elsewhere, by a URL that has secrets.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}/v2/{}/{path}", self.endpoint.base, self.repository)
    }

    /// Waits, unless the act is cancelled.
    pub(super) fn pause(&self, time: Duration) -> Result<(), RegistryError> {
        const LOOK: Duration = Duration::from_millis(50);
        let end = Instant::now() + time;
        loop {
            if self.is_cancelled.load(Ordering::Relaxed) {
                return Err(RegistryError::Cancelled);
            }
            match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Ok(()),
                left => thread::sleep(left.min(LOOK)),
            }
        }
    }

    /// Tells whether an answer is from the registry itself.
    fn is_of_registry(&self, response: &Response) -> bool {
        Url::parse(&self.endpoint.base).is_ok_and(|base| base.origin() == response.url().origin())
    }

    /// Asks once only: another place has the same.
    pub(super) fn once(self) -> Self {
        Self { attempts: 1, ..self }
    }

    /// Gets a path of the repository, such as `manifests/latest`. Waits where the registry asks for it, and
    /// tries again after a failure that may pass.
    pub(super) fn get(
        &self,
        path: &str,
        with: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, RegistryError> {
        let url = self.url(path);
        let mut is_challenged = false;
        let mut attempt = 1;
        loop {
            let authorization = self.authorization.lock().expect("no thread panics with it").clone();
            let request = with(self.client.get(&url));
            let request = authorization.iter().fold(request, |request, found| found.apply(request));
            let failure = match request.send() {
                Ok(response) => match response.status() {
                    status if status.is_success() => return Ok(response),
                    // A host to which the registry leads gets no login of the registry.
                    StatusCode::UNAUTHORIZED if !is_challenged && self.is_of_registry(&response) => {
                        is_challenged = true;
                        let found =
                            authorize(&self.tokens, &self.endpoint, &self.repository, response.headers())?;
                        *self.authorization.lock().expect("no thread panics with it") = found;
                        continue;
                    }
                    _ => self.failure(&url, response),
                },
                Err(source) => Failed {
                    wait: None,
                    may_pass: !source.is_connect() || attempt < CONNECTIONS,
                    error: RegistryError::Unreachable { url: url.clone(), source: source.without_url() },
                },
            };
            let wait = failure.wait.unwrap_or_else(|| backoff(attempt));
            if !failure.may_pass || attempt >= self.attempts || wait > LONGEST_WAIT {
                return Err(failure.error);
            }
            log::info!("{}; trying again in {} s", volt_vmm::problem(&failure.error), wait.as_secs_f32());
            self.pause(wait)?;
            attempt += 1;
        }
    }

    fn failure(&self, url: &str, response: Response) -> Failed {
        let status = response.status();
        let wait = retry_after(response.headers());
        let (url, code) = (url.to_owned(), status.as_u16());
        let error = match code {
            401 | 403 => {
                RegistryError::Refused { url, status: code, registry: self.endpoint.registry.clone() }
            }
            404 => RegistryError::Missing { url },
            429 => RegistryError::Limited { url, wait },
            _ => RegistryError::Status { url, status: code, message: message(response) },
        };
        Failed { error, wait, may_pass: code == 429 || status.is_server_error() }
    }
}

/// An attempt that failed.
struct Failed {
    error: RegistryError,
    /// The wait that the registry asks for.
    wait: Option<Duration>,
    may_pass: bool,
}

/// The wait before the next attempt: 0.5 s, 1 s, 2 s, 4 s.
pub(super) fn backoff(attempt: u32) -> Duration {
    Duration::from_millis(250) * 2u32.pow(attempt.min(ATTEMPTS))
}

/// The wait that an answer asks for: seconds (RFC 9110, section 10.2.3). Registries give no dates.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    text.parse().map(Duration::from_secs).ok()
}

/// The beginning of an error's text.
fn message(response: Response) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    // An error without its text is still one.
    let _ = response.take(MESSAGE as u64).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}
