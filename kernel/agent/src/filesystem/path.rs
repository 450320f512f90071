//! Paths of clients.

use std::path::{Component, Path, PathBuf};

use crate::connect::{Code, RpcError};
use crate::users::User;

/// Makes a client's path absolute. Relative paths and `~` start at the user's home.
pub fn resolve(user: &User, path: &str) -> Result<PathBuf, RpcError> {
    if path.contains('\0') {
        return Err(RpcError::new(Code::InvalidArgument, "a path contains a zero byte"));
    }
    let below_home = match path.strip_prefix('~') {
        Some("") => "",
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        Some(_) => {
            let message = format!("{path} begins with another user's home: write its path");
            return Err(RpcError::new(Code::InvalidArgument, message));
        }
        None => path,
    };
    Ok(clean(&user.home.join(below_home)))
}

/// Removes `.`, `..` and repeated slashes by the text alone.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_path_starts_at_home() {
        let home = PathBuf::from("/home/user");
        let user =
            User { name: "user".into(), uid: 1, gid: 1, groups: vec![], home, shell: "/bin/sh".into() };
        let resolved = |path| resolve(&user, path).map(|path| path.to_str().unwrap().to_owned());
        for (path, wanted) in [
            ("", "/home/user"),
            ("~", "/home/user"),
            ("~/a", "/home/user/a"),
            ("a/./b//../c", "/home/user/a/c"),
            ("/etc/../../x/", "/x"),
        ] {
            assert_eq!(resolved(path).unwrap(), wanted, "{path}");
        }
        assert_eq!(resolved("~root/a").unwrap_err().code, Code::InvalidArgument);
        assert_eq!(resolved("a\0b").unwrap_err().code, Code::InvalidArgument);
    }
}
