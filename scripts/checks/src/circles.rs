//! Import circles among sibling modules, at every level of a crate. A module may use an ancestor, for its
//! re-exports.
//!
//! The source is read as text: paths that begin with `crate`, `super`, `self` or the name of a child module.
//! Tests at the end of a file, and files of tests, do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Findings;

/// Path of a module below its crate: `[]` is the crate itself.
type Module = Vec<String>;
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Finds import circles in the crate with this source directory.
pub(crate) fn check(source: &Path) -> io::Result<Findings> {
    let modules = modules_of(source)?;
    let mut imports = Imports::new();
    for (module, file) in &modules {
        let used = imports_of(module, &fs::read_to_string(file)?, &modules);
        imports.insert(module.clone(), used);
    }
    Ok(circles(&imports).into_iter().map(|found| format!("{}: {found}", source.display())).collect())
}

fn modules_of(source: &Path) -> io::Result<BTreeMap<Module, PathBuf>> {
    let mut modules = BTreeMap::new();
    let mut directories = vec![source.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "tests" {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_of_tests(&name) {
                let below = directory.strip_prefix(source).unwrap_or(Path::new(""));
                let mut module: Module =
                    below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                if !(name == "mod" || module.is_empty() && (name == "lib" || name == "main")) {
                    module.push(name);
                }
                modules.insert(module, path);
            }
        }
    }
    Ok(modules)
}

fn is_of_tests(name: &str) -> bool {
    ["tests", "testing", "properties"].iter().any(|end| name == *end || name.ends_with(&format!("_{end}")))
}

/// The modules that the code of `module` uses, without itself and its ancestors.
fn imports_of(module: &Module, code: &str, modules: &BTreeMap<Module, PathBuf>) -> BTreeSet<Module> {
    let mut used = BTreeSet::new();
    for path in paths_in(&without_tests_and_comments(code)) {
        let mut full = module.clone();
        let mut parts = path.iter().map(String::as_str).peekable();
        match parts.peek() {
            Some(&"crate") => {
                full.clear();
                parts.next();
            }
            Some(&("self" | "super")) => {
                while let Some(&first @ ("self" | "super")) = parts.peek() {
                    if first == "super" {
                        full.pop();
                    }
                    parts.next();
                }
            }
            Some(child) => {
                let child = [module.as_slice(), &[(*child).to_owned()]].concat();
                if !modules.contains_key(&child) {
                    continue;
                }
            }
            None => continue,
        }
        full.extend(parts.map(str::to_owned));
        while !full.is_empty() && !modules.contains_key(&full) {
            full.pop();
        }
        if !module.starts_with(&full) {
            used.insert(full);
        }
    }
    used
}

fn without_tests_and_comments(code: &str) -> String {
    let lines: Vec<&str> = code.lines().collect();
    let tests = (0..lines.len()).find(|&at| {
        let after = if lines.get(at + 1).is_some_and(|line| line.starts_with("#[path")) { 2 } else { 1 };
        lines[at] == "#[cfg(test)]" && lines.get(at + after).is_some_and(|line| line.starts_with("mod "))
    });
    let kept = lines[..tests.unwrap_or(lines.len())].iter();
    kept.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
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

/// Each circle once: its level, its members, and the imports between them.
fn circles(imports: &Imports) -> Findings {
    let mut levels: BTreeMap<Module, BTreeMap<String, BTreeMap<String, Vec<String>>>> = BTreeMap::new();
    for (from, used) in imports {
        for to in used {
            let shared = from.iter().zip(to).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) {
                let reason = format!("{} -> {}", from.join("/"), to.join("/"));
                let level = levels.entry(from[..shared].to_vec()).or_default();
                level.entry(one.clone()).or_default().entry(other.clone()).or_default().push(reason);
            }
        }
    }
    let mut findings = Vec::new();
    for (level, siblings) in &levels {
        let mut seen = BTreeSet::new();
        for one in siblings.keys().filter(|one| reached(one, siblings).contains(*one)) {
            if !seen.insert(one.clone()) {
                continue;
            }
            let mut members = reached(one, siblings);
            members.retain(|other| reached(other, siblings).contains(one));
            seen.extend(members.iter().cloned());
            let names = members.iter().cloned().collect::<Vec<_>>().join(", ");
            let name = if level.is_empty() { "the crate".to_owned() } else { level.join("/") };
            let mut finding = format!("circle in {name}: {names}");
            for (from, used) in siblings.iter().filter(|(from, _)| members.contains(*from)) {
                for reason in used
                    .iter()
                    .filter(|(to, _)| members.contains(*to) && *to != from)
                    .flat_map(|(_, why)| why)
                {
                    finding.push_str("\n    ");
                    finding.push_str(reason);
                }
            }
            findings.push(finding);
        }
    }
    findings
}

/// All siblings that `one` imports, directly or through others.
fn reached(one: &str, siblings: &BTreeMap<String, BTreeMap<String, Vec<String>>>) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![one.to_owned()];
    while let Some(module) = next.pop() {
        for used in siblings.get(&module).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(used.clone()) {
                next.push(used.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Findings {
        let module = |path: &str| {
            path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Module>()
        };
        let modules: BTreeMap<_, _> = files.iter().map(|(path, _)| (module(path), PathBuf::new())).collect();
        let imports = files
            .iter()
            .map(|(path, code)| (module(path), imports_of(&module(path), code, &modules)))
            .collect();
        circles(&imports)
    }

    #[test]
    fn siblings_that_import_each_other_are_a_circle() {
        let found = crate_of(&[
            ("", ""),
            ("a", "use crate::b::B;"),
            ("b", "fn f() { crate::a::g() }"),
            ("c", "use crate::a;"),
        ]);
        assert_eq!(found, ["circle in the crate: a, b\n    a -> b\n    b -> a"]);
    }

    #[test]
    fn circle_of_three_through_children_is_found_at_its_level() {
        let found = crate_of(&[
            ("", ""),
            ("room", ""),
            ("room/a", ""),
            ("room/a/deep", "use super::super::b::B;"),
            ("room/b", "use crate::room::{c::C, d};"),
            ("room/c", "use super::a;"),
            ("room/d", ""),
        ]);
        let imports = "room/a/deep -> room/b\n    room/b -> room/c\n    room/c -> room/a";
        assert_eq!(found, [format!("circle in room: a, b, c\n    {imports}")]);
    }

    #[test]
    fn ancestors_comments_and_tests_are_no_imports() {
        let found = crate_of(&[
            ("", "pub use a::A;"),
            ("a", "use crate::A; use b::B;"),
            ("a/b", "use super::A; // crate::c\n"),
            ("c", "use crate::a;\n#[cfg(test)]\nmod tests { use crate::d; }"),
            ("d", "use crate::c;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn grouped_paths_are_written_out() {
        let paths = paths_in("use crate::{a::{self, B as C}, d}; x.e::f; Vec::<u8>::new();");
        let joined: Vec<_> = paths.iter().map(|path| path.join("::")).collect();
        assert_eq!(joined, ["crate::a::self", "crate::a::B", "crate::d", "Vec"]);
    }
}
