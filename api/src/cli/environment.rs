//! Variables of a program: those of its image, of files and of options, as docker takes them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

use crate::failure::Failure;

/// Adds variables of files, then of options, to those of an image. The last value of a name counts.
///
/// # Errors
/// A file cannot be read, or a line or an option has no name.
pub(super) fn of(image: Vec<String>, files: &[PathBuf], options: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = BTreeMap::new();
    let mut order = Vec::new();
    let mut set = |name: &str, value: String| {
        if all.insert(name.to_owned(), value).is_none() {
            order.push(name.to_owned());
        }
    };
    for entry in &image {
        if let Some((name, value)) = entry.split_once('=') {
            set(name, value.to_owned());
        }
    }
    for file in files {
        let text = fs::read_to_string(file)
            .map_err(|error| Failure::system(format!("read {}", file.display()), error))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}, line {}", file.display(), number + 1);
            pair(line, &place)?.into_iter().for_each(|(name, value)| set(name, value));
        }
    }
    for option in options {
        pair(option, "--env")?.into_iter().for_each(|(name, value)| set(name, value));
    }
    Ok(order.iter().map(|name| format!("{name}={}", all[name])).collect())
}

/// Variables by their names.
pub(super) fn map(variables: &[String]) -> BTreeMap<String, String> {
    let pairs = variables.iter().filter_map(|variable| variable.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A name and its value. A name alone has the value that it has here; one that is not set here is left out.
fn pair<'a>(text: &'a str, place: &str) -> Result<Option<(&'a str, String)>, Failure> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, env::var(text).ok()),
    };
    if name.is_empty() || name.contains(char::is_whitespace) {
        let problem = format!("{place}: {text:?} names no variable; write NAME=VALUE or NAME");
        return Err(Failure::config("env", problem));
    }
    Ok(value.map(|value| (name, value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    #[test]
    fn later_values_replace_earlier_ones_in_their_place() {
        let dir = Dir::new();
        let file = dir.path("env");
        fs::write(&file, "# a comment\n\nA=file\nB=with = sign \nVOLT_UNSET_HERE\n").unwrap();
        let image = vec!["PATH=/bin".to_owned(), "A=image".to_owned()];
        let found = of(image, &[file], &["C=".to_owned(), "A=option".to_owned()]).unwrap();
        assert_eq!(found, ["PATH=/bin", "A=option", "B=with = sign ", "C="]);
    }

    #[test]
    fn value_of_a_bare_name_is_that_of_this_process() {
        let path = env::var("PATH").unwrap();
        assert_eq!(of(Vec::new(), &[], &["PATH".to_owned()]).unwrap(), [format!("PATH={path}")]);
    }

    #[test]
    fn missing_file_and_missing_name_are_refused_with_their_place() {
        let error = of(Vec::new(), &["/no/env".into()], &[]).unwrap_err().to_string();
        assert_eq!(error, "cannot read /no/env");
        let dir = Dir::new();
        let file = dir.path("env");
        fs::write(&file, "A=1\n=2\n").unwrap();
        let error = volt_vmm::report(&of(Vec::new(), &[file], &[]).unwrap_err());
        assert!(error.contains("env, line 2: \"=2\" names no variable"), "{error}");
        let error = volt_vmm::report(&of(Vec::new(), &[], &["a b=1".to_owned()]).unwrap_err());
        assert!(error.contains("--env: \"a b=1\""), "{error}");
    }
}
