//! Calls of a VM's own process to the agent, over the guest's second port ([`volt_job::quiet`]).
//!
//! They take no path of the host, so they work in a confined process, and with any socket of the vsock.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use volt_agent_client::{Answer, Request, Timed, greeted, shown};
use volt_job::job::Mount;
use volt_job::quiet::{
    ENTROPY, FREEZE_MS, HOOKS_SECONDS, MOUNT, PORT, QUIESCE, QUIESCE_WITHOUT_HOOKS, THAW, WAKE, Wake, Woken,
};
use volt_vmm::internal::random_hex;
use volt_vmm::{Error, Result, RunState, Vm};

use super::{BOOT, STEP};

/// Longest time for an answer: that of hooks and freezer, and of a slow guest.
const PATIENCE: Duration = Duration::from_millis(1000 * HOOKS_SECONDS + FREEZE_MS + 10_000);
/// Longest time to mount disks: a journal may be long, and a volume new.
const TO_MOUNT: Duration = BOOT;
/// Longest time until the agent listens. After a restore, a slow guest needs some seconds to see that its old
/// connections are gone; an agent that was killed starts again after a second.
const LISTENS: Duration = Duration::from_secs(10);
/// Options that errors name.
const QUIET: &str = "quiesce";
const REQUIRED: &str = "require_agent";
/// The status of a thaw.
const THAWN: u16 = 204;
/// Digits of a random number of the library.
const DIGITS: usize = 32;

/// Waits until the agent of a guest that boots listens. Returns false if the VM ends before.
///
/// # Errors
/// It takes too long.
pub(crate) fn await_agent(vm: &Vm) -> Result<bool> {
    let end = Instant::now() + BOOT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let error = match connect(vm, left) {
            Ok(_) => return Ok(true),
            Err(error) => error,
        };
        if vm.state() == RunState::Ended {
            return Ok(false);
        }
        if left.is_zero() {
            return Err(refused("image", format!("{}; see volt-vmm logs --console", unanswered(&error))));
        }
        sleep(STEP);
    }
}

/// Freezes the guest's workload, after its hooks if they are to run.
///
/// # Errors
/// The agent does not answer, a hook fails, or a process does not freeze.
pub(crate) fn quiesce(vm: &Vm, hooks: bool) -> Result<()> {
    let path = if hooks { QUIESCE } else { QUIESCE_WITHOUT_HOOKS };
    call(vm, QUIET, PATIENCE, 200, &|| Request::new("POST", path)).map(drop)
}

/// Mounts disks. A volume that is new gets the image's files first, which may take long.
///
/// # Errors
/// The agent does not answer, or a disk cannot be mounted.
pub(crate) fn mount(vm: &Vm, mounts: &[Mount]) -> Result<()> {
    call(vm, "volume", TO_MOUNT, 204, &|| Request::new("POST", MOUNT).json(&mounts)).map(drop)
}

/// Thaws the workload, whose clock is `late`, over the connection of its wake if that still is one.
///
/// # Errors
/// The agent does not answer, or the guest's kernel refuses.
pub(crate) fn thaw(vm: &Vm, late: Duration, connection: Option<UnixStream>) -> Result<()> {
    let path = if late.is_zero() { THAW.to_owned() } else { format!("{THAW}?late={}", late.as_nanos()) };
    let request = || Request::new("POST", &path);
    match connection.map(|stream| answer(&request(), timed(vm, stream, PATIENCE)?)) {
        Some(Ok(answer)) if answer.status == THAWN => Ok(()),
        Some(Err(error)) if error.kind() == ErrorKind::TimedOut => Err(refused(QUIET, unanswered(&error))),
        _ => call(vm, QUIET, PATIENCE, THAWN, &request).map(drop),
    }
}

/// A guest that was woken, and waits for its thaw.
#[derive(Debug, Default)]
pub(crate) struct Awake {
    /// How late its clock is: the call was on its way for a while, and a guest that has just been restored is
    /// slow.
    pub(crate) late: Duration,
    /// The connection of the call. Another one would take the guest a dozen system calls.
    pub(crate) connection: Option<UnixStream>,
}

impl Awake {
    /// Returns both. The connection is for one attempt to thaw.
    pub(crate) fn take_connection(&mut self) -> (Duration, Option<UnixStream>) {
        (self.late, self.connection.take())
    }
}

/// Wakes the guest of a restored VM: it gets entropy, the time and its names, and runs its hooks if they are
/// to run. The workload stays frozen.
///
/// # Errors
/// The agent does not answer, or a part failed.
pub(crate) fn wake(vm: &Vm, hostname: Option<String>, hooks: bool) -> Result<Awake> {
    let entropy = (0..2 * ENTROPY / DIGITS).map(|_| random_hex()).collect::<Result<String>>()?;
    let wake = Wake { entropy, now: 0, hostname, machine_id: Some(random_hex()?), hooks };
    // The time is that of the moment when the agent listens.
    let request = || {
        let wake = Wake { now: nanoseconds(), ..wake.clone() };
        Request::new("POST", WAKE).keeping_connection().json(&wake)
    };
    let answer = call(vm, REQUIRED, PATIENCE, 200, &request)?;
    let lies = || refused(REQUIRED, "the guest's agent sent an answer that is none");
    let answered = nanoseconds();
    let (body, rest) = answer.body_and_rest().map_err(|_| lies())?;
    let Woken { problems, now } = serde_json::from_slice(&body).map_err(|_| lies())?;
    match problems.is_empty() {
        // Only a wrong clock differs by more than the time that a call may take.
        true => Ok(Awake {
            late: Duration::from_nanos(answered.saturating_sub(now)).min(PATIENCE),
            connection: rest.map(Timed::into_inner),
        }),
        false => {
            let problems = shown(&problems.join("; "));
            Err(refused(REQUIRED, format!("the guest did not wake whole: {problems}")))
        }
    }
}

/// The host's time since 1970.
fn nanoseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Makes a call for the option `field`. Waits for an agent that does not listen yet, and in all for as long
/// as `patience`.
fn call<'r>(
    vm: &Vm,
    field: &'static str,
    patience: Duration,
    expected: u16,
    request: &dyn Fn() -> Request<'r>,
) -> Result<Answer> {
    let begun = Instant::now();
    let end = begun + patience;
    let stream = loop {
        let left = end.saturating_duration_since(Instant::now());
        let error = match connect(vm, left) {
            Ok(stream) => break stream,
            Err(error) => error,
        };
        let problem = match error.kind() {
            _ if vm.state() == RunState::Ended => "the VM has ended".to_owned(),
            ErrorKind::ConnectionRefused if begun.elapsed() < LISTENS => {
                sleep(STEP);
                continue;
            }
            ErrorKind::ConnectionRefused => {
                "no agent listens in the guest; VMs that run an image have one".to_owned()
            }
            _ => unanswered(&error),
        };
        return Err(refused(field, problem));
    };
    log::debug!("the agent answers");
    match answer(&request(), stream).map_err(|error| refused(field, unanswered(&error)))? {
        answer if answer.status == expected => Ok(answer),
        answer => Err(refused(field, answer.text())),
    }
}

fn answer(request: &Request<'_>, mut stream: Timed) -> io::Result<Answer> {
    request.write(&mut stream)?;
    Answer::read(stream)
}

/// Connects to the agent.
fn connect(vm: &Vm, patience: Duration) -> io::Result<Timed> {
    greeted(timed(vm, vm.connect_vsock(PORT).map_err(failed)?, patience)?)
}

/// Ends all reads of a connection after a time, and with the VM.
fn timed(vm: &Vm, stream: UnixStream, patience: Duration) -> io::Result<Timed> {
    Ok(Timed::new(stream, Some(patience)).or_until(vm.ended_fd().map_err(failed)?))
}

fn failed(error: Error) -> io::Error {
    io::Error::other(volt_vmm::problem(&error))
}

fn unanswered(error: &io::Error) -> String {
    format!("the guest's agent does not answer: {error}")
}

/// Makes an error of an option.
pub(crate) fn refused(field: &'static str, problem: impl Into<String>) -> Error {
    Error::Config { field, problem: problem.into().into() }
}
