//! Options of a sandbox, and its start.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::face::Blocking;
use crate::program::{Program, words};
use crate::record::Record;
use crate::sandbox::Sandbox;

/// The main process of a sandbox that runs none of its own: it does nothing for 68 years.
const SLEEP: [&str; 2] = ["sleep", "2147483647"];

/// The main process. The VM ends with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Main {
    /// It waits.
    #[default]
    Sleep,
    /// The image's own.
    OfImage,
    /// These words in place of the image's command.
    Command(Vec<String>),
}

/// Options of a sandbox. [`Sandbox::builder`] begins one.
///
/// The main process of the VM only waits, and [`Sandbox::exec`] runs commands beside it: an image's own
/// command is often a shell or an interpreter, which ends at once without input, and the VM with it.
/// [`Builder::command`] and [`Builder::image_command`] choose another main process.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder<Face = Blocking> {
    program: Program,
    image: Option<String>,
    name: Option<String>,
    main: Main,
    /// Options of `volt-vmm run`, in the order of the calls.
    options: Vec<String>,
    face: PhantomData<Face>,
}

impl<Face> Builder<Face> {
    pub(crate) fn new() -> Self {
        Self {
            program: Program::default(),
            image: None,
            name: None,
            main: Main::default(),
            options: Vec::new(),
            face: PhantomData,
        }
    }

    /// Sets the image: `[REGISTRY/]REPOSITORY[:TAG|@DIGEST]`. It is pulled if it is not here, which may take
    /// minutes. A sandbox that starts needs one.
    pub fn image(mut self, image: impl Into<String>) -> Self {
        self.image = Some(image.into());
        self
    }

    /// Sets the name, by which commands of `volt-vmm` know the VM: 1 to 48 letters, digits, `_` and `-`. One
    /// is made up otherwise.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the guest's memory: bytes with a unit, such as `512M` (the default) or `2G`.
    pub fn memory(self, size: impl Into<String>) -> Self {
        self.option("--memory", size)
    }

    /// Sets the number of vCPUs, 1 to 32. The default is 1.
    pub fn vcpus(self, count: u32) -> Self {
        self.option("--vcpus", count.to_string())
    }

    /// Sets a variable of the main process and of all commands.
    pub fn env(self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.option("--env", format!("{}={}", name.as_ref(), value.as_ref()))
    }

    /// Sets the working directory of the main process and of all commands, in place of the image's.
    pub fn cwd(self, directory: impl Into<String>) -> Self {
        self.option("--workdir", directory)
    }

    /// Sets the user of the main process and of all commands, in place of the image's: `USER[:GROUP]`, names
    /// of the image or numbers.
    pub fn user(self, user: impl Into<String>) -> Self {
        self.option("--user", user)
    }

    /// Mounts a volume, `NAME:PATH[:ro]`, or a copy of a directory of the host, `DIR:PATH:ro`.
    pub fn volume(self, volume: impl Into<String>) -> Self {
        self.option("--volume", volume)
    }

    /// Lets a port of the host lead to a TCP port of the VM: `[ADDRESS:]HOST:GUEST`. Forks have no ports.
    pub fn port(self, ports: impl Into<String>) -> Self {
        self.option("--publish", ports)
    }

    /// Chooses the VM's network: `user` (the default, by the program passt), `nat`, `tap=NAME` or `none`.
    pub fn network(self, network: impl Into<String>) -> Self {
        self.option("--net", network)
    }

    /// Lets the VM reach what a rule names, such as `*.debian.org:443` or `10.1.0.0/16`. It goes before rules
    /// that deny. Without a rule about them, the surroundings of the host are closed.
    pub fn allow(self, rule: impl Into<String>) -> Self {
        self.option("--allow", rule)
    }

    /// Keeps the VM from what a rule names.
    pub fn deny(self, rule: impl Into<String>) -> Self {
        self.option("--deny", rule)
    }

    /// Keeps the VM from all that no rule allows.
    pub fn default_deny(mut self) -> Self {
        self.options.push("--default-deny".to_owned());
        self
    }

    /// Sets the most bytes of changes to the image's files, with a unit. The default is `10G`.
    pub fn disk_size(self, size: impl Into<String>) -> Self {
        self.option("--disk-size", size)
    }

    /// Boots the VM anew, in place of a restore from the image's warm snapshot.
    pub fn cold(mut self) -> Self {
        self.options.push("--cold".to_owned());
        self
    }

    /// Sets further options of `volt-vmm run`, such as `["--confine", "strict"]`.
    pub fn run_options<S: Into<String>>(mut self, options: impl IntoIterator<Item = S>) -> Self {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }

    /// Runs these words as the main process, with the image's entry point before them. The VM ends with it.
    pub fn command<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.main = Main::Command(words.into_iter().map(Into::into).collect());
        self
    }

    /// Runs the image's own main process, such as a server. The VM ends with it.
    pub fn image_command(mut self) -> Self {
        self.main = Main::OfImage;
        self
    }

    /// Sets the path of the program `volt-vmm`, which is searched in `PATH` otherwise.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program.path = path.into();
        self
    }

    /// Sets the directory of all run directories (`VOLT_RUN_DIR`), an absolute path. Only sandboxes and
    /// commands with the same one know the VM.
    pub fn run_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.program.set("VOLT_RUN_DIR", path.as_ref());
        self
    }

    /// Sets the directory of images, snapshots and volumes (`VOLT_DATA_DIR`).
    pub fn data_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.program.set("VOLT_DATA_DIR", path.as_ref());
        self
    }

    /// Sets the directory of the guest's kernel and agent (`VOLT_GUEST`).
    pub fn guest_files(mut self, path: impl AsRef<Path>) -> Self {
        self.program.set("VOLT_GUEST", path.as_ref());
        self
    }

    fn option(mut self, option: &str, value: impl Into<String>) -> Self {
        // In one word, so that a value that begins with a dash is no option.
        self.options.push(format!("{option}={}", value.into()));
        self
    }

    /// The command line that starts the VM.
    fn words(&self, image: &str) -> Vec<String> {
        let Self { name, main, options, .. } = self;
        let mut words = words(["run", "--detach", "--rm", "--json"]);
        words.extend(name.iter().map(|name| format!("--name={name}")));
        words.extend(options.iter().cloned());
        if *main == Main::Sleep {
            words.push(format!("--entrypoint={}", SLEEP[0]));
        }
        // No later word is an option, whatever it begins with.
        words.extend(["--".to_owned(), image.to_owned()]);
        match main {
            Main::Sleep => words.push(SLEEP[1].to_owned()),
            Main::OfImage => {}
            Main::Command(command) => words.extend(command.iter().cloned()),
        }
        words
    }

    /// As [`Builder::start`].
    pub(crate) fn start_blocking(self) -> Result<Sandbox> {
        const ACT: &str = "start";
        let label = self.name.clone().or_else(|| self.image.clone()).unwrap_or_default();
        let Some(image) = &self.image else {
            let message = "it has no image; name one by image()".to_owned();
            return Err(Error::Refused { sandbox: label, act: ACT, status: None, message });
        };
        let record: Record = self.program.json(&label, ACT, &self.words(image))?;
        Sandbox::started(self.program, record, ACT)
    }

    /// As [`Builder::connect`].
    pub(crate) fn connect_blocking(self, name: &str) -> Result<Sandbox> {
        Sandbox::of_running(self.program, name)
    }
}

impl Sandbox {
    /// Begins the options of a new sandbox.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Finds a VM that runs, by its name or its id, with the program and the directories of this user.
    /// [`Builder::connect`] takes others. The VM lives on when the sandbox is dropped.
    ///
    /// # Errors
    /// No VM has the name, or the VM has ended or runs no image.
    pub fn connect(name: &str) -> Result<Self> {
        Self::builder().connect(name)
    }
}

impl Builder<Blocking> {
    /// Starts the VM. Returns once its agent answers and its main process runs.
    ///
    /// # Errors
    /// The program cannot be started, or refuses: [`Error::Refused`] has its messages. Nothing is left then.
    pub fn start(self) -> Result<Sandbox> {
        self.start_blocking()
    }

    /// Finds a VM that runs, by its name or its id. Only the program and the directories of this builder
    /// count. The VM lives on when the sandbox is dropped.
    ///
    /// # Errors
    /// No VM has the name, or the VM has ended or runs no image.
    pub fn connect(self, name: &str) -> Result<Sandbox> {
        self.connect_blocking(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(builder: &Builder) -> String {
        builder.words(builder.image.as_deref().unwrap()).join(" ")
    }

    #[test]
    fn main_process_waits_unless_another_is_chosen() {
        let builder = Sandbox::builder().image("python:3.12");
        let begin = "run --detach --rm --json";
        assert_eq!(line(&builder), format!("{begin} --entrypoint=sleep -- python:3.12 2147483647"));
        let own = builder.clone().image_command();
        assert_eq!(line(&own), format!("{begin} -- python:3.12"));
        let other = builder.command(["-c", "x y"]);
        assert_eq!(line(&other), format!("{begin} -- python:3.12 -c x y"));
    }

    #[test]
    fn options_are_words_of_run() {
        let builder = Sandbox::builder().image("i").name("web").memory("1G").vcpus(2).env("A", "b c");
        let builder = builder.volume("data:/data").port("8080:80").network("user").cold().disk_size("1G");
        let builder = builder.default_deny().allow("*.example.org:443").deny("10.0.0.0/8");
        let builder = builder.user("1:2").cwd("/srv").run_options(["--confine", "strict"]).image_command();
        let expected = "run --detach --rm --json --name=web --memory=1G --vcpus=2 --env=A=b c \
                        --volume=data:/data --publish=8080:80 --net=user --cold --disk-size=1G \
                        --default-deny --allow=*.example.org:443 --deny=10.0.0.0/8 --user=1:2 \
                        --workdir=/srv --confine strict -- i";
        assert_eq!(line(&builder), expected);
    }

    #[test]
    fn directories_are_variables_of_the_program() {
        let builder: Builder =
            Sandbox::builder().program("/p").run_dir("/r").data_dir("/d").guest_files("/g");
        let variables = [("VOLT_RUN_DIR", "/r"), ("VOLT_DATA_DIR", "/d"), ("VOLT_GUEST", "/g")];
        assert_eq!(builder.program.path, Path::new("/p"));
        assert_eq!(builder.program.variables, variables.map(|(name, value)| (name, value.into())));
    }

    #[test]
    fn sandbox_without_an_image_is_refused_before_the_program_starts() {
        let error = Sandbox::builder().name("web").program("/missing").start().unwrap_err();
        assert_eq!(error.to_string(), "cannot start sandbox web: it has no image; name one by image()");
    }

    #[test]
    fn refusal_of_the_program_has_its_messages() {
        let error = Sandbox::builder().image("i").program("/bin/false").start().unwrap_err().to_string();
        assert_eq!(error, "cannot start sandbox i: /bin/false ended with exit status: 1");
    }
}
