//! The calls of this crate as async functions, for tokio. The feature `tokio` has them.
//!
//! Each call runs the blocking one on a thread of the runtime's blocking pool, which has 512 threads unless
//! the runtime says otherwise. A command that is followed occupies one: if all do, other calls wait, also
//! those that would end a command or a VM.
//!
//! # Dropped futures
//!
//! The blocking call goes on to its end, and its result is dropped:
//!
//! - a sandbox that starts, or the children of a fork, are ended and removed once they run;
//! - a command that [`Exec::output`] or [`Process::output`] follows is killed;
//! - an event that [`Process::next_event`] waits for is that of the next call;
//! - a file that is being written is written whole.
//!
//! Dropping a [`Sandbox`] in a runtime does not wait for the VM's end. The runtime does when it shuts down,
//! so no VM is left, unless it is shut down with a timeout that passes before.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use ::tokio::runtime::Handle;
use ::tokio::task::{JoinError, JoinHandle, spawn_blocking};
use volt_agent_client::FileEntry;

use crate::builder::Builder;
use crate::error::{Error, Result};
use crate::exec::{Exec, Output};
use crate::process::{Event, Killer};
use crate::sandbox::Vm;

/// The acts of a builder are async.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Async {}

/// Runs a blocking act on another thread.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    result_of(spawn_blocking(act).await)
}

fn result_of<T>(joined: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    match joined {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(Error::RuntimeEnded),
        },
    }
}

/// Runs an act on another thread, without a wait if this is a thread of a runtime.
fn in_background(act: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(act)),
        Err(_) => act(),
    }
}

/// A VM that runs an image: [`crate::Sandbox`] with async functions. Dropping one that this program started
/// or forked ends the VM and removes it, in the background.
#[derive(Debug)]
pub struct Sandbox {
    /// Absent only while this is dropped.
    inner: Option<crate::Sandbox>,
}

impl Sandbox {
    fn new(inner: crate::Sandbox) -> Self {
        Self { inner: Some(inner) }
    }

    fn inner(&self) -> &crate::Sandbox {
        self.inner.as_ref().expect("only a drop takes it")
    }

    fn into_inner(mut self) -> crate::Sandbox {
        self.inner.take().expect("only a drop takes it")
    }

    fn vm(&self) -> Arc<Vm> {
        self.inner().vm()
    }

    /// Begins the options of a new sandbox.
    pub fn builder() -> Builder<Async> {
        Builder::new()
    }

    /// As [`crate::Sandbox::connect`].
    ///
    /// # Errors
    /// As there.
    pub async fn connect(name: &str) -> Result<Self> {
        Self::builder().connect(name).await
    }

    /// The VM's name, by which commands of `volt-vmm` know it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner().name()
    }

    /// The VM's id: 12 hexadecimal digits, which no other VM has.
    #[must_use]
    pub fn id(&self) -> &str {
        self.inner().id()
    }

    /// As [`crate::Sandbox::exec`].
    pub fn exec<S: Into<String>>(&self, words: impl IntoIterator<Item = S>) -> Exec<Async> {
        self.inner().exec(words).with_face()
    }

    /// The files of the guest.
    #[must_use]
    pub fn files(&self) -> Files {
        Files(self.inner().files())
    }

    /// As [`crate::Sandbox::fork`].
    ///
    /// # Errors
    /// As there.
    pub async fn fork(&self, count: usize) -> Result<Vec<Self>> {
        let vm = self.vm();
        // The children are owned at once, so that they end with a future that was dropped.
        let children = blocking(move || Vm::fork(&vm, count)).await?;
        Ok(children.into_iter().map(Self::new).collect())
    }

    /// As [`crate::Sandbox::snapshot`].
    ///
    /// # Errors
    /// As there.
    pub async fn snapshot(&self, name: &str) -> Result<()> {
        let (vm, name) = (self.vm(), name.to_owned());
        blocking(move || vm.snapshot(&name)).await
    }

    /// As [`crate::Sandbox::kill`].
    ///
    /// # Errors
    /// As there.
    pub async fn kill(self) -> Result<()> {
        let inner = self.into_inner();
        blocking(move || inner.kill()).await
    }

    /// As [`crate::Sandbox::leave`].
    #[must_use]
    pub fn leave(self) -> String {
        self.into_inner().leave()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            in_background(move || drop(inner));
        }
    }
}

impl Builder<Async> {
    /// As [`Builder::start`](crate::Builder::start). A VM that starts while the future is dropped is removed.
    ///
    /// # Errors
    /// As there.
    pub async fn start(self) -> Result<Sandbox> {
        blocking(move || self.start_blocking()).await.map(Sandbox::new)
    }

    /// As [`Builder::connect`](crate::Builder::connect).
    ///
    /// # Errors
    /// As there.
    pub async fn connect(self, name: &str) -> Result<Sandbox> {
        let name = name.to_owned();
        blocking(move || self.connect_blocking(&name)).await.map(Sandbox::new)
    }
}

impl Exec<Async> {
    /// As [`Exec::spawn`](crate::Exec::spawn). A command that starts while the future is dropped goes on.
    ///
    /// # Errors
    /// As there.
    pub async fn spawn(self) -> Result<Process> {
        blocking(move || crate::Process::start(self)).await.map(Process::new)
    }

    /// As [`Exec::output`](crate::Exec::output). A command whose future is dropped is killed.
    ///
    /// # Errors
    /// As there.
    pub async fn output(self) -> Result<Output> {
        // Also a command that starts while the future is dropped.
        let started = blocking(move || crate::Process::start(self).map(StartedCommand::of)).await?;
        Process::new(started.keep()).output().await
    }
}

/// A command that has started, and is killed on drop unless it is kept.
struct StartedCommand(Option<crate::Process>);

impl StartedCommand {
    fn of(process: crate::Process) -> Self {
        Self(Some(process))
    }

    fn keep(mut self) -> crate::Process {
        self.0.take().expect("only this takes it")
    }
}

impl Drop for StartedCommand {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            in_background(move || drop(process.kill()));
        }
    }
}

/// A command that runs: [`crate::Process`] with async functions.
#[derive(Debug)]
pub struct Process {
    /// Another thread has it while it waits.
    inner: Arc<Mutex<crate::Process>>,
    pid: u32,
    killer: Killer,
    /// The wait for the next event, of a future that was dropped.
    waits: Option<JoinHandle<Result<Option<Event>>>>,
}

impl Process {
    fn new(inner: crate::Process) -> Self {
        let (pid, killer) = (inner.pid(), inner.killer());
        Self { inner: Arc::new(Mutex::new(inner)), pid, killer, waits: None }
    }

    /// The process id in the guest.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// As [`crate::Process::next_event`]. The future may be dropped, as `select!` does: the next call returns
    /// the event.
    ///
    /// # Errors
    /// As there.
    pub async fn next_event(&mut self) -> Result<Option<Event>> {
        let waits = self.waits.get_or_insert_with(|| {
            let inner = Arc::clone(&self.inner);
            spawn_blocking(move || inner.lock().unwrap_or_else(PoisonError::into_inner).next_event())
        });
        let joined = waits.await;
        self.waits = None;
        result_of(joined)
    }

    /// As [`crate::Process::wait`]. A command whose future is dropped is killed.
    ///
    /// # Errors
    /// As there.
    pub async fn wait(self) -> Result<u8> {
        self.finish(crate::Process::finish).await
    }

    /// As [`crate::Process::output`]. A command whose future is dropped is killed.
    ///
    /// # Errors
    /// As there.
    pub async fn output(self) -> Result<Output> {
        self.finish(crate::Process::collect).await
    }

    /// Follows the command to its end by `act`.
    async fn finish<T: Send + 'static>(self, act: fn(&mut crate::Process) -> Result<T>) -> Result<T> {
        let Self { inner, killer, waits, .. } = self;
        let mut kills = KillsOnDrop(Some(killer));
        if let Some(waits) = waits
            && let Some(event) = result_of(waits.await)?
        {
            inner.lock().unwrap_or_else(PoisonError::into_inner).put_back(event);
        }
        let result = blocking(move || act(&mut inner.lock().unwrap_or_else(PoisonError::into_inner))).await;
        kills.0 = None;
        result
    }

    /// As [`crate::Process::kill`].
    ///
    /// # Errors
    /// As there.
    pub async fn kill(&self) -> Result<()> {
        let killer = self.killer.clone();
        blocking(move || killer.kill()).await
    }
}

/// Kills a command when its future is dropped.
struct KillsOnDrop(Option<Killer>);

impl Drop for KillsOnDrop {
    fn drop(&mut self) {
        if let Some(killer) = self.0.take() {
            in_background(move || drop(killer.kill()));
        }
    }
}

/// The files of a sandbox: [`crate::Files`] with async functions.
#[derive(Clone, Debug)]
pub struct Files(crate::Files);

impl Files {
    async fn with<T: Send + 'static>(
        &self,
        path: &str,
        act: impl FnOnce(&crate::Files, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (files, path) = (self.0.clone(), path.to_owned());
        blocking(move || act(&files, &path)).await
    }

    /// As [`crate::Files::read`].
    ///
    /// # Errors
    /// As there.
    pub async fn read(&self, path: impl AsRef<str>) -> Result<Vec<u8>> {
        self.with(path.as_ref(), |files, path| files.read(path)).await
    }

    /// As [`crate::Files::write`].
    ///
    /// # Errors
    /// As there.
    pub async fn write(&self, path: impl AsRef<str>, content: impl Into<Vec<u8>>) -> Result<()> {
        let content = content.into();
        self.with(path.as_ref(), move |files, path| files.write(path, &content)).await
    }

    /// As [`crate::Files::list`].
    ///
    /// # Errors
    /// As there.
    pub async fn list(&self, directory: impl AsRef<str>) -> Result<Vec<FileEntry>> {
        self.with(directory.as_ref(), |files, path| files.list(path)).await
    }

    /// As [`crate::Files::remove`].
    ///
    /// # Errors
    /// As there.
    pub async fn remove(&self, path: impl AsRef<str>) -> Result<()> {
        self.with(path.as_ref(), |files, path| files.remove(path)).await
    }

    /// As [`crate::Files::exists`].
    ///
    /// # Errors
    /// As there.
    pub async fn exists(&self, path: impl AsRef<str>) -> Result<bool> {
        self.with(path.as_ref(), |files, path| files.exists(path)).await
    }

    /// As [`crate::Files::make_dir`].
    ///
    /// # Errors
    /// As there.
    pub async fn make_dir(&self, path: impl AsRef<str>) -> Result<()> {
        self.with(path.as_ref(), |files, path| files.make_dir(path)).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use ::tokio::runtime::Runtime;
    use ::tokio::time::{sleep, timeout};

    use super::*;
    use crate::testing::{Answer, FakeAgent, FakeProgram, stream};

    #[test]
    fn dropped_sandboxes_are_removed_before_the_runtime_is_down() {
        let fake = FakeProgram::new();
        Runtime::new().unwrap().block_on(async {
            let sandbox = fake.builder_of::<Async>().start().await.unwrap();
            let children = sandbox.fork(2).await.unwrap();
            assert_eq!(children[1].name(), "web-2");
            drop((sandbox, children));
        });
        let mut calls = fake.calls();
        calls.sort_unstable();
        assert_eq!(calls[1..], ["rm --force 0001", "rm --force 0002", "rm --force 0123"]);
    }

    #[test]
    fn start_whose_future_is_dropped_leaves_no_vm() {
        let fake = FakeProgram::new();
        let hold = fake.dir.path("hold");
        fs::write(&hold, "").unwrap();
        Runtime::new().unwrap().block_on(async {
            let is_called = async {
                while !fake.dir.path("calls").exists() {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            ::tokio::select! {
                _ = fake.builder_of::<Async>().start() => panic!("the program waits"),
                () = is_called => {}
            }
            fs::remove_file(&hold).unwrap();
        });
        assert_eq!(fake.calls(), ["rm --force 0123"]);
    }

    #[test]
    fn sandbox_outside_of_a_runtime_is_removed_too() {
        let fake = FakeProgram::new();
        let runtime = Runtime::new().unwrap();
        let sandbox = runtime.block_on(fake.builder_of::<Async>().start()).unwrap();
        let left = runtime.block_on(fake.builder_of::<Async>().start()).unwrap();
        drop(runtime);
        drop(sandbox);
        assert_eq!(left.leave(), "web");
        assert_eq!(fake.calls(), ["rm --force 0123"]);
    }

    #[test]
    fn event_of_a_dropped_future_is_that_of_the_next_call() {
        let start = stream(&[r#"{"event":{"start":{"pid":7}}}"#], None);
        let data = r#"{"event":{"data":{"stdout":"aGk="}}}"#;
        let whole = stream(&[data, r#"{"event":{"end":{"exitCode":3,"exited":true}}}"#], Some("{}"));
        let rest = whole[whole.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4..].to_vec();
        let (go, waits) = std::sync::mpsc::channel();
        let fake = FakeAgent::new(vec![Answer::Later(start, waits, rest)]);
        Runtime::new().unwrap().block_on(async {
            let mut process = fake.exec(&["a"]).with_face::<Async>().spawn().await.unwrap();
            for _ in 0..3 {
                let event = timeout(Duration::from_millis(5), process.next_event()).await;
                assert!(event.is_err(), "there is none yet: {event:?}");
            }
            go.send(()).unwrap();
            let output = process.output().await.unwrap();
            assert_eq!((output.status, &*output.text()), (3, "hi"));
        });
    }

    #[test]
    fn command_whose_future_is_dropped_is_killed() {
        let start = stream(&[r#"{"event":{"start":{"pid":7}}}"#], None);
        let killed = b"HTTP/1.0 204 No Content\r\n\r\n".to_vec();
        let fake = FakeAgent::new(vec![Answer::Open(start), Answer::Whole(killed)]);
        let runtime = Runtime::new().unwrap();
        let ended = runtime.block_on(async {
            let process = fake.exec(&["sleep"]).with_face::<Async>().spawn().await.unwrap();
            timeout(Duration::from_millis(20), process.output()).await
        });
        assert!(ended.is_err(), "it goes on");
        let _start = fake.requests.recv().unwrap();
        assert!(fake.requests.recv().unwrap().ends_with(r#"{"pid":7,"signal":9}"#));
        // A thread of its pool still follows the command.
        runtime.shutdown_background();
    }
}
