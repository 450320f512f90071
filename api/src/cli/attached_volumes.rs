//! `-v` of `run IMAGE`: volumes, and directories of the host that are packed at the start.

use std::collections::HashMap;
use std::fs::File;
use std::path::{self, Path, PathBuf};
use std::str::FromStr;

use volt_image::directory::Directory;
use volt_image::lock::Lock;
use volt_job::job::{FileSystem, Mount};
use volt_vmm::config::devices::DiskConfig;

use super::empty_disk;
use super::volume_place::{DEFAULT_SIZE, Volumes};
use crate::failure::Failure;
use crate::output::progress;
use crate::run_dir::name::VmName;

/// The cure for a directory that a VM would write to.
const READ_ONLY: &str = "a directory of the host can only be read (:ro); volt-vmm cp copies changes back";

/// A value of the option.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VolumeOption {
    source: Source,
    path: String,
    is_read_only: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Volume(VmName),
    Directory(PathBuf),
}

impl FromStr for VolumeOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, is_read_only) = match text.rsplit_once(':') {
            Some((rest, "ro")) => (rest, true),
            Some((rest, "rw")) => (rest, false),
            _ => (text, false),
        };
        let Some((source, path)) = rest.rsplit_once(':') else {
            return Err("write NAME:PATH, NAME:PATH:ro or DIR:PATH:ro".to_owned());
        };
        Mount::check_path(path)?;
        let source = if source.contains('/') {
            if !is_read_only {
                return Err(READ_ONLY.to_owned());
            }
            Source::Directory(source.into())
        } else {
            let name = source.parse::<VmName>();
            Source::Volume(name.map_err(|problem| format!("{problem}; a directory has a slash, as ./DIR"))?)
        };
        Ok(Self { source, path: path.to_owned(), is_read_only })
    }
}

/// A disk of a VM beside those of its image.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) mount: Mount,
    pub(super) image: PathBuf,
    /// The directory that is packed as the image.
    directory: Option<PathBuf>,
}

impl Attached {
    /// The disk, as the VM has it.
    pub(super) fn disk(&self) -> DiskConfig {
        let disk = DiskConfig::new(self.mount.disk.as_str(), self.image.clone());
        if self.mount.read_only { disk.read_only() } else { disk }
    }
}

/// Makes volumes that are missing, and keeps all of them from being removed while the lock lives. Packed
/// directories will be in `data`.
///
/// # Errors
/// Two have one path or one source, or the host refuses.
pub(super) fn attach(
    options: &[VolumeOption],
    data: &Path,
) -> Result<(Vec<Attached>, Option<Lock>), Failure> {
    refuse_twice(options)?;
    let volumes = if options.is_empty() { None } else { Some(Volumes::open()?) };
    let kept = volumes.as_ref().map(Volumes::keep).transpose()?;
    let mut all = Vec::new();
    for (number, option) in options.iter().enumerate() {
        let disk = format!("vol{number}");
        let (kind, image, directory) = match (&option.source, &volumes) {
            (Source::Volume(name), Some(volumes)) => {
                volumes.create(name, DEFAULT_SIZE)?;
                (FileSystem::Ext4, volumes.path(name), None)
            }
            (Source::Directory(directory), _) => {
                let directory = path::absolute(directory)
                    .map_err(|error| Failure::system(format!("find {}", directory.display()), error))?;
                (FileSystem::Erofs, data.join(format!("{disk}.erofs")), Some(directory))
            }
            (Source::Volume(_), None) => unreachable!("an option opens the place of volumes"),
        };
        let mount = Mount { disk, path: option.path.clone(), kind, read_only: option.is_read_only };
        all.push(Attached { mount, image, directory });
    }
    Ok((all, kept))
}

/// Refuses two volumes at one path, and one volume at two.
fn refuse_twice(options: &[VolumeOption]) -> Result<(), Failure> {
    let (mut paths, mut names) = (HashMap::new(), HashMap::new());
    for option in options {
        let path: PathBuf = Path::new(&option.path).components().collect();
        let problem = if paths.insert(path, ()).is_some() {
            format!("two are mounted at {}; give each a path of its own", option.path)
        } else if let Source::Volume(name) = &option.source
            && names.insert(name, ()).is_some()
        {
            format!("the volume {name} is given twice; a VM has it once")
        } else {
            continue;
        };
        return Err(Failure::config("volume", problem));
    }
    Ok(())
}

/// Packs the directory of a disk that has one.
///
/// # Errors
/// The host refuses a file, or one changes meanwhile.
pub(super) fn pack(attached: &Attached) -> Result<(), Failure> {
    let Some(path) = &attached.directory else { return Ok(()) };
    let shown = path.display();
    let directory = progress::during(&format!("listing {shown}"), || Directory::read(path))?;
    let what = format!("packing {shown} ({} files)", directory.files());
    let file = File::create_new(&attached.image)
        .map_err(|error| Failure::system(format!("create {}", attached.image.display()), error))?;
    let identity = empty_disk::identity()?;
    Ok(progress::during(&what, || directory.write(&file, identity))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<VolumeOption, String> {
        text.parse()
    }

    #[test]
    fn source_with_a_slash_is_a_directory() {
        let option =
            |source, is_read_only| Ok(VolumeOption { source, path: "/data".to_owned(), is_read_only });
        let volume = || Source::Volume("db".parse().unwrap());
        assert_eq!(parse("db:/data"), option(volume(), false));
        assert_eq!(parse("db:/data:rw"), option(volume(), false));
        assert_eq!(parse("db:/data:ro"), option(volume(), true));
        for directory in ["./db", "/a:b", "../x/"] {
            let text = format!("{directory}:/data:ro");
            assert_eq!(parse(&text), option(Source::Directory(directory.into()), true));
        }
    }

    #[test]
    fn option_that_cannot_be_met_has_its_cure() {
        for (text, words) in [
            ("/data", "write NAME:PATH"),
            ("db", "write NAME:PATH"),
            ("db:data", "from / on"),
            ("db:/", "below it"),
            ("db:/a/../b", "without .."),
            ("db:/data:z", "from / on"),
            (".:/data:ro", "a directory has a slash, as ./DIR"),
            (":/data", "at least one character"),
            ("./db:/data", "can only be read (:ro); volt-vmm cp"),
            ("/db:/data:rw", "can only be read (:ro); volt-vmm cp"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
        }
    }

    #[test]
    fn one_path_and_one_volume_are_given_once() {
        let refused = |all: &[&str]| {
            let options: Vec<_> = all.iter().map(|text| parse(text).unwrap()).collect();
            refuse_twice(&options).err().map(|failure| volt_vmm::report(&failure))
        };
        assert_eq!(refused(&["a:/x", "b:/y", "/d:/z:ro", "/d:/u:ro"]), None);
        assert!(refused(&["a:/x", "b://x/."]).unwrap().contains("two are mounted at //x/."));
        assert!(refused(&["a:/x", "a:/y:ro"]).unwrap().contains("the volume a is given twice"));
    }
}
