//! The modules of a crate, and the paths that their code uses.
//!
//! The source is read as text, as rustfmt leaves it: paths that begin with `crate`, `super`, `self` or the
//! name of a child module. Items under `#[cfg(test)]` and modules of tests do not count.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Path of a module below its crate: `[]` is the crate itself.
pub(crate) type Module = Vec<String>;

/// A module's file and its code.
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    pub(crate) code: String,
}

pub(crate) type Modules = BTreeMap<Module, Source>;

/// Reads the modules of the crate with this source directory.
///
/// # Errors
/// A module has no file.
pub(crate) fn modules_of(directory: &Path) -> io::Result<Modules> {
    let mut root = directory.join("lib.rs");
    if !root.exists() {
        root = directory.join("main.rs");
    }
    let mut modules = Modules::new();
    // A module, its file, and the directory of its children.
    let mut next = vec![(Module::new(), root, directory.to_owned())];
    while let Some((module, file, children)) = next.pop() {
        let content = fs::read_to_string(&file)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
        let code = code_of(&content);
        for (name, given) in declared(&code) {
            let child = [module.as_slice(), std::slice::from_ref(&name)].concat();
            next.push(if let Some(given) = given {
                let file = file.with_file_name(given);
                let beside = file.parent().unwrap_or(directory).to_owned();
                (child, file, beside)
            } else {
                let below = children.join(&name);
                let flat = children.join(format!("{name}.rs"));
                (child, if flat.exists() { flat } else { below.join("mod.rs") }, below)
            });
        }
        modules.insert(module, Source { file, code });
    }
    Ok(modules)
}

/// Names of the modules that have files of their own, and the files that `#[path]` gives them.
fn declared(code: &str) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    let mut given = None;
    for line in code.lines() {
        if let Some(path) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            given = Some(path.to_owned());
        } else if let Some(name) = module_declared(line).and_then(|rest| rest.strip_suffix(';')) {
            let given = given.take();
            if !is_of_tests(name) {
                found.push((name.to_owned(), given));
            }
        }
    }
    found
}

/// The rest of a line that begins a module, after `mod `.
fn module_declared(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("mod ")?;
    let before = before.trim();
    (before.is_empty() || before == "pub" || before.starts_with("pub(")).then_some(rest)
}

fn is_of_tests(name: &str) -> bool {
    ["tests", "testing", "properties"].iter().any(|end| name == *end || name.ends_with(&format!("_{end}")))
}

/// The code without comments and without items under `#[cfg(test)]`. Empty lines replace those, so that lines
/// keep their numbers.
pub(crate) fn code_of(content: &str) -> String {
    let mut kept = String::new();
    let mut lines = content.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() == "#[cfg(test)]" {
            let indent = &line[..line.len() - line.trim_start().len()];
            kept.push('\n');
            let end = format!("{indent}}}");
            for skipped in lines.by_ref() {
                kept.push('\n');
                let item = skipped.trim();
                let is_whole = skipped.starts_with(&end) || item.ends_with([';', ',', '}']);
                let begins = skipped.strip_prefix(indent).is_some_and(|rest| !rest.starts_with(' '));
                if begins && is_whole && !item.starts_with("#[") && !item.starts_with("//") {
                    break;
                }
            }
        } else {
            kept.push_str(line.split("//").next().unwrap_or_default());
            kept.push('\n');
        }
    }
    kept
}

/// Target of a path in a module: the innermost module, and the item named in it.
pub(crate) struct Target {
    pub(crate) module: Module,
    pub(crate) item: Option<String>,
}

/// The targets of all paths in this module that lead into its crate.
pub(crate) fn targets(module: &Module, modules: &Modules) -> Vec<Target> {
    let Some(source) = modules.get(module) else { return Vec::new() };
    paths_in(&source.code).iter().filter_map(|path| target(module, path, modules)).collect()
}

fn target(module: &Module, path: &[String], modules: &Modules) -> Option<Target> {
    let mut full = module.clone();
    let mut parts = path.iter().map(String::as_str).peekable();
    match parts.peek()? {
        &"crate" => {
            full.clear();
            parts.next();
        }
        &("self" | "super") => {
            while let Some(&first @ ("self" | "super")) = parts.peek() {
                if first == "super" {
                    full.pop();
                }
                parts.next();
            }
        }
        child => {
            let child = [module.as_slice(), &[(*child).to_owned()]].concat();
            if !modules.contains_key(&child) {
                return None;
            }
        }
    }
    full.extend(parts.map(str::to_owned));
    let mut item = None;
    while !full.is_empty() && !modules.contains_key(&full) {
        item = full.pop();
    }
    Some(Target { module: full, item })
}

/// All paths of more than one part, those in braces written out: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let tokens = tokens_of(code);
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let begins = is_name(&tokens[at]) && (at == 0 || tokens[at - 1] != "::" && tokens[at - 1] != ".");
        if begins && tokens.get(at + 1).is_some_and(|next| next == "::") {
            at = read_path(&tokens, at, &mut Vec::new(), &mut paths);
        } else {
            at += 1;
        }
    }
    paths
}

/// Reads the path at `at`, below `prefix`, and returns the position after it.
fn read_path(
    tokens: &[String],
    mut at: usize,
    prefix: &mut Vec<String>,
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let depth = prefix.len();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while at < tokens.len() && tokens[at] != "}" {
                    if is_name(&tokens[at]) {
                        at = read_path(tokens, at, prefix, paths);
                        if tokens.get(at).is_some_and(|token| token == "as") {
                            at += 2;
                        }
                    } else {
                        at += 1;
                    }
                }
                at += 1;
                break;
            }
            Some(name) if is_name(name) => {
                prefix.push(name.to_owned());
                at += 1;
                if tokens.get(at).is_none_or(|token| token != "::") {
                    paths.push(prefix.clone());
                    break;
                }
                at += 1;
            }
            _ => {
                // `a::*`, `a::<T>`: the path so far.
                paths.push(prefix.clone());
                break;
            }
        }
    }
    prefix.truncate(depth);
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

fn tokens_of(code: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(first) = chars.next() {
        if first.is_alphanumeric() || first == '_' {
            let mut word = String::from(first);
            while let Some(next) = chars.next_if(|next| next.is_alphanumeric() || *next == '_') {
                word.push(next);
            }
            tokens.push(word);
        } else if first == ':' && chars.next_if_eq(&':').is_some() {
            tokens.push("::".to_owned());
        } else if !first.is_whitespace() {
            tokens.push(first.to_string());
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_below_a_declared_module_of_tests_is_read() {
        let code = "mod a;\n#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests;\nuse crate::b; // crate::c\n";
        assert_eq!(code_of(code), "mod a;\n\n\n\nuse crate::b; \n");
    }

    #[test]
    fn only_the_item_under_cfg_test_is_left_out() {
        let code = "\
impl A {
    #[cfg(test)]
    fn f(
        x: u8,
    ) {
        g();
    }

    fn g() {}
}

#[cfg(test)]
mod tests {
    use super::*;
}

fn last() {}
";
        let kept: Vec<_> = code_of(code).lines().map(str::to_owned).collect();
        let kept: Vec<_> = kept.iter().filter(|line| !line.is_empty()).collect();
        assert_eq!(kept, ["impl A {", "    fn g() {}", "}", "fn last() {}"]);
        assert_eq!(code_of(code).lines().count(), code.lines().count());
    }

    #[test]
    fn path_attribute_names_the_file_of_a_module() {
        let code = "#[path = \"b_of_a.rs\"]\nmod b;\npub(crate) mod c;\nmod tests;\nmod inline {\n}\n";
        let given = Some("b_of_a.rs".to_owned());
        assert_eq!(declared(code), [("b".to_owned(), given), ("c".to_owned(), None)]);
    }

    #[test]
    fn grouped_paths_are_written_out() {
        let paths = paths_in("use crate::{a::{self, B as C}, d}; x.e::f; Vec::<u8>::new();");
        let joined: Vec<_> = paths.iter().map(|path| path.join("::")).collect();
        assert_eq!(joined, ["crate::a::self", "crate::a::B", "crate::d", "Vec"]);
    }
}
