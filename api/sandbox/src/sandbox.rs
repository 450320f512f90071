//! One sandbox: a VM that runs an image.

use std::collections::BTreeMap;
use std::sync::Arc;

use volt_agent_client::Agent;

use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::files::Files;
use crate::program::{Program, words};
use crate::record::{Main, Record};

/// A VM that runs an image. Dropping one that this program started or forked ends the VM and removes all that
/// is kept of it; the drop waits for that, and tells no error. [`Sandbox::kill`] does the same and tells
/// errors, and [`Sandbox::leave`] lets the VM live.
///
/// The VM also lives on if this process is killed: `volt-vmm ps` then shows it, and `volt-vmm rm --force`
/// removes it.
#[derive(Debug)]
pub struct Sandbox {
    vm: Arc<Vm>,
    /// Whether the VM ends with this.
    is_owner: bool,
}

/// A VM, whose end this does not decide.
#[derive(Debug)]
pub(crate) struct Vm {
    program: Program,
    record: Record,
    agent: Agent,
    main: Main,
}

impl Sandbox {
    /// The sandbox of a VM that this program has started.
    pub(crate) fn started(program: Program, record: Record, act: &'static str) -> Result<Self> {
        match record.clone().whole() {
            Ok(whole) => {
                let main = whole.main.clone().unwrap_or_default();
                Ok(Self { vm: Arc::new(Vm::new(program, whole, main)), is_owner: true })
            }
            Err(_) if record.is_gone() => {
                let message = "it has ended at once, with its main process".to_owned();
                Err(Error::Refused { sandbox: record.name, act, status: None, message })
            }
            Err(problem) => {
                let error = program.differs(&record.name, act, &problem);
                // The VM runs all the same.
                let _ = Vm::new(program, record, Main::default()).remove();
                Err(error)
            }
        }
    }

    /// The sandbox of a VM that runs.
    pub(crate) fn of_running(program: Program, name: &str) -> Result<Self> {
        const ACT: &str = "connect to";
        let record: Record = program.json(name, ACT, &words(["inspect", "--json", "--", name]))?;
        let refused = |message: &str| {
            let (sandbox, message) = (name.to_owned(), message.to_owned());
            Err(Error::Refused { sandbox, act: ACT, status: None, message })
        };
        if record.is_over() {
            return refused("it has ended");
        }
        let whole = record.whole().map_err(|problem| program.differs(name, ACT, &problem))?;
        let Some(main) = whole.main.clone() else { return refused("it does not run an image") };
        Ok(Self { vm: Arc::new(Vm::new(program, whole, main)), is_owner: false })
    }

    /// The VM's name, by which commands of `volt-vmm` know it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.vm.record.name
    }

    /// The VM's id: 12 hexadecimal digits, which no other VM has.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.vm.record.id
    }

    /// Describes a command: the program, which is searched in the guest's `PATH`, and its arguments. It has
    /// the variables, working directory and user of the main process, but for what [`Exec`] changes.
    pub fn exec<S: Into<String>>(&self, words: impl IntoIterator<Item = S>) -> Exec {
        self.vm.exec(words.into_iter().map(Into::into).collect())
    }

    /// The files of the guest.
    #[must_use]
    pub fn files(&self) -> Files {
        Files::new(self.vm.agent.clone(), self.name())
    }

    /// Forks the VM into `count` sandboxes, all at the same instant. The VM goes on.
    ///
    /// The guest's programs stand still for the fork, and go on in each child with entropy, time, host name
    /// and machine id of its own. Children share the memory of the VM until they write, and what one writes
    /// to memory or to the image's files shows in no other. Their names are the VM's with `-1`, `-2` and so
    /// on. A fork is all or nothing.
    ///
    /// # Errors
    /// The host or the guest refuses, such as a VM with a volume that only one VM can have. No child is left
    /// then.
    pub fn fork(&self, count: usize) -> Result<Vec<Self>> {
        Vm::fork(&self.vm, count)
    }

    /// Takes a snapshot of the VM as `name`, which the VM survives. `volt-vmm restore NAME` makes VMs of it.
    ///
    /// The guest's programs stand still for it, as in [`Sandbox::fork`].
    ///
    /// # Errors
    /// The name is taken, or the host or the guest refuses.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        self.vm.snapshot(name)
    }

    /// Ends the VM at once, and removes all that is kept of it, also if this program did not start it.
    ///
    /// # Errors
    /// The program `volt-vmm` refuses. The VM may then live on.
    pub fn kill(mut self) -> Result<()> {
        self.is_owner = false;
        self.vm.remove()
    }

    /// Lets the VM live on without this program. Returns its name, which [`Sandbox::connect`] takes. Once it
    /// has ended, nothing is kept of it, but for the record of a fork.
    pub fn leave(mut self) -> String {
        self.is_owner = false;
        self.name().to_owned()
    }

    /// The VM, which an act in another thread may use without owning it.
    #[cfg(feature = "tokio")]
    pub(crate) fn vm(&self) -> Arc<Vm> {
        Arc::clone(&self.vm)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.is_owner {
            // It fails if the VM has ended, and is removed.
            let _ = self.vm.remove();
        }
    }
}

impl Vm {
    fn new(program: Program, record: Record, main: Main) -> Self {
        let agent = Agent::new(&record.vsock());
        Self { program, record, agent, main }
    }

    fn exec(&self, argv: Vec<String>) -> Exec {
        let Main { env, cwd, user } = &self.main;
        let name = &self.record.name;
        let mut variables = BTreeMap::from([("HOSTNAME".to_owned(), name.clone())]);
        let of_main = env.iter().filter_map(|variable| variable.split_once('='));
        variables.extend(of_main.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let mut exec = Exec::new(self.agent.clone(), name, argv, variables);
        exec = exec.cwd(if cwd.is_empty() { "/" } else { cwd });
        if user.is_empty() { exec } else { exec.user(user) }
    }

    /// As [`Sandbox::fork`].
    pub(crate) fn fork(vm: &Arc<Self>, count: usize) -> Result<Vec<Sandbox>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut line = words(["fork", "--quiesce", "--require-agent", "--json"]);
        line.extend([format!("--count={count}"), vm.record.id.clone()]);
        let records: Vec<Record> = vm.program.json(&vm.record.name, "fork", &line)?;
        let child = |record| Sandbox {
            vm: Arc::new(Self::new(vm.program.clone(), record, vm.main.clone())),
            is_owner: true,
        };
        Ok(records.into_iter().map(child).collect())
    }

    /// As [`Sandbox::snapshot`].
    pub(crate) fn snapshot(&self, name: &str) -> Result<()> {
        let line = words(["snapshot", "create", "--quiesce", "--", &self.record.id, name]);
        self.program.run(&self.record.name, "take a snapshot of", &line).map(drop)
    }

    /// Ends the VM, and removes it.
    pub(crate) fn remove(&self) -> Result<()> {
        let line = words(["rm", "--force", &self.record.id]);
        self.program.run(&self.record.name, "remove", &line).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::FakeProgram;

    #[test]
    fn drop_removes_the_vm_by_its_id_and_its_children() {
        let fake = FakeProgram::new();
        let sandbox = fake.builder().start().unwrap();
        assert_eq!((sandbox.name(), sandbox.id()), ("web", "0123"));
        let children = sandbox.fork(2).unwrap();
        assert_eq!(children.iter().map(Sandbox::name).collect::<Vec<_>>(), ["web-1", "web-2"]);
        drop(children);
        sandbox.snapshot("warm").unwrap();
        drop(sandbox);
        let expected = [
            "fork --quiesce --require-agent --json --count=2 0123",
            "rm --force 0001",
            "rm --force 0002",
            "snapshot create --quiesce -- 0123 warm",
            "rm --force 0123",
        ];
        assert_eq!(fake.calls(), expected);
    }

    #[test]
    fn vm_that_is_left_or_found_lives_on_and_a_killed_one_is_removed_once() {
        let fake = FakeProgram::new();
        assert_eq!(fake.builder().start().unwrap().leave(), "web");
        drop(fake.builder().connect("web").unwrap());
        assert_eq!(fake.calls(), ["inspect --json -- web"]);
        fake.builder().connect("web").unwrap().kill().unwrap();
        assert_eq!(fake.calls()[2..], ["rm --force 0123"]);
        assert!(fake.builder().start().unwrap().fork(0).unwrap().is_empty());
    }

    #[test]
    fn vm_that_has_ended_or_runs_no_image_is_refused() {
        let fake = FakeProgram::new();
        let connect = || fake.builder().connect("web").unwrap_err().to_string();
        let text = fs::read_to_string(fake.dir.path("inspect.json")).unwrap();
        fs::write(fake.dir.path("inspect.json"), text.replace("running", "ended")).unwrap();
        assert_eq!(connect(), "cannot connect to sandbox web: it has ended");
        fs::write(fake.dir.path("inspect.json"), &text).unwrap();
        let record = fs::read_to_string(fake.dir.path("web.json")).unwrap();
        fs::write(fake.dir.path("web/vm.json"), record).unwrap();
        assert_eq!(connect(), "cannot connect to sandbox web: it does not run an image");
    }

    #[test]
    fn vm_whose_record_cannot_be_read_is_removed() {
        let fake = FakeProgram::new();
        fs::remove_file(fake.dir.path("web/vm.json")).unwrap();
        let error = fake.builder().start().unwrap_err().to_string();
        assert!(error.contains("is of another version: cannot read"), "{error}");
        assert_eq!(fake.calls(), ["rm --force 0123"]);
    }

    #[test]
    fn vm_that_ends_at_once_is_told() {
        let fake = FakeProgram::new();
        fs::remove_dir_all(fake.dir.path("web")).unwrap();
        let error = fake.builder().start().unwrap_err().to_string();
        assert!(error.ends_with("sandbox web: it has ended at once, with its main process"), "{error}");
    }

    #[test]
    fn command_has_what_the_main_process_has_but_for_its_own() {
        let fake = FakeProgram::new();
        let sandbox = fake.builder().start().unwrap();
        let command = sandbox.exec(["true"]).command;
        let env =
            [("A", "image"), ("HOSTNAME", "web")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(command.env, env.into());
        assert_eq!((command.cwd.as_deref(), command.user.as_deref()), (Some("/srv"), Some("app")));
        let own = sandbox.exec(["true"]).env("A", "own").cwd("/").user("0").command;
        assert_eq!(
            (own.env["A"].as_str(), own.cwd.as_deref(), own.user.as_deref()),
            ("own", Some("/"), Some("0"))
        );
    }
}
