//! The main process, from an image's configuration and the options.

use std::io::{IsTerminal as _, stdin};

use volt_image::store::Image;
use volt_job::StartMain;
use volt_job::job::Process;
use volt_job::start;

use crate::cli::environment;
use crate::cli::image_options::ImageArgs;
use crate::failure::Failure;
use crate::terminal;

/// Seconds after which process 1 kills a main process that ignores its stop signal. `volt-vmm stop` does so
/// after its own limit, which the guest does not know.
const STUBBORN: u32 = 3600;

/// Programs that work as process 1 alone, as those of whole distributions. Podman knows them too.
const INITS: [&str; 6] = [
    "/sbin/init",
    "/usr/sbin/init",
    "/usr/local/sbin/init",
    "/lib/systemd/systemd",
    "/usr/lib/systemd/systemd",
    "/bin/systemd",
];

/// Whether the user of `USER[:GROUP]` is root.
fn is_root(user: &str) -> bool {
    ["root", "0"].contains(&user.split(':').next().unwrap_or_default())
}

/// Describes the main process.
///
/// # Errors
/// The image names no program, or an option cannot be met.
pub(super) fn of(image: &Image, args: &ImageArgs, is_detached: bool) -> Result<StartMain, Failure> {
    if args.tty && args.interactive && !is_detached && !stdin().is_terminal() {
        return Err(Failure::config("tty", "standard input is no terminal; leave out --tty (-t)"));
    }
    let argv = args.argv(image);
    if argv.first().is_none_or(String::is_empty) {
        return Err(Failure::config("command", "the image names no program; name one behind IMAGE"));
    }
    let is_init = INITS.contains(&argv[0].as_str());
    if is_init && args.user.as_deref().is_some_and(|user| !is_root(user)) {
        return Err(Failure::config("user", "an init is process 1, and so root; leave out --user (-u)"));
    }
    if is_init && args.workdir.is_some() {
        return Err(Failure::config("workdir", "an init begins at /; leave out --workdir (-w)"));
    }
    let config = image.config.config().as_ref();
    let of_image = |found: Option<&Option<String>>| found.cloned().flatten().unwrap_or_default();
    let env = config.and_then(|config| config.env().clone()).unwrap_or_default();
    let process = Process {
        env: environment::of(env, &args.env_files, &args.env)?,
        user: args.user.clone().unwrap_or_else(|| of_image(config.map(|config| config.user()))),
        cwd: args.workdir.clone().unwrap_or_else(|| of_image(config.map(|config| config.working_dir()))),
        terminal: args.tty,
        stdin: args.interactive,
        console: false,
        stop_seconds: STUBBORN,
        is_init,
        ..Process::new(argv)
    };
    let stop_signal = of_image(config.map(|config| config.stop_signal()));
    let process = if stop_signal.is_empty() { process } else { Process { stop_signal, ..process } };
    let size = if args.tty { terminal::size() } else { None };
    let main = StartMain { process, size, detached: is_detached };
    let length = serde_json::to_vec(&main).expect("it has no keys but text").len();
    if length > start::LONGEST {
        return Err(Failure::config(
            "env",
            "program, arguments and variables are longer than 128 KiB; shorten them",
        ));
    }
    Ok(main)
}
