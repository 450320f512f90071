//! Users and groups, from `/etc/passwd` and `/etc/group`.

mod spec;

use std::collections::HashMap;
use std::path::PathBuf;

pub use spec::find_spec;

/// A user that programs run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The login name.
    pub name: String,
    /// The user id.
    pub uid: u32,
    /// The id of the first group.
    pub gid: u32,
    /// Ids of all groups.
    pub groups: Vec<u32>,
    /// The home directory.
    pub home: PathBuf,
    /// The login shell.
    pub shell: String,
}

impl User {
    /// A user by number, without an entry in a file.
    fn numbered(uid: u32) -> Self {
        let home = PathBuf::from(if uid == 0 { "/root" } else { "/" });
        let name = if uid == 0 { "root".to_owned() } else { uid.to_string() };
        Self { name, uid, gid: 0, groups: vec![0], home, shell: "/bin/sh".to_owned() }
    }

    /// Root, whatever the image's files say.
    pub fn root() -> Self {
        Self::numbered(0)
    }

    /// Reads a line of passwd(5). It says nothing about groups but the first.
    fn from_line(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        let mut user = Self { name: name.to_owned(), gid, groups: vec![gid], ..Self::numbered(uid) };
        if let Some(home) = fields.nth(1).filter(|home| !home.is_empty()) {
            user.home = home.into();
        }
        if let Some(shell) = fields.next().filter(|shell| !shell.is_empty()) {
            user.shell = shell.to_owned();
        }
        Some(user)
    }

    /// Adds the groups that name this user as a member.
    fn with_groups(mut self, group: &str) -> Self {
        for (_, id, members) in groups(group) {
            if members.split(',').any(|member| member.trim() == self.name) && !self.groups.contains(&id) {
                self.groups.push(id);
            }
        }
        self
    }
}

/// Names, numbers and members of group(5).
fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some((name, fields.nth(1)?.parse().ok()?, fields.next().unwrap_or_default()))
    })
}

/// Finds a user by name. An image without `/etc/passwd` has root.
pub fn find(name: &str) -> Option<User> {
    find_in(name, &text_of("/etc/passwd"), &text_of("/etc/group"))
}

fn text_of(path: &str) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn find_in(name: &str, passwd: &str, group: &str) -> Option<User> {
    let found = passwd.lines().filter_map(User::from_line).find(|user| user.name == name);
    let user = found.or_else(|| (name == "root").then(User::root))?;
    Some(user.with_groups(group))
}

/// Names of user and group ids.
pub struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    /// Reads both files once.
    pub fn read() -> Self {
        Self { users: ids(&text_of("/etc/passwd")), groups: ids(&text_of("/etc/group")) }
    }

    /// The user's name, else the id.
    pub fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// The group's name, else the id.
    pub fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
}

/// Maps the third field to the first one of each line. The first line of an id wins.
fn ids(text: &str) -> HashMap<u32, String> {
    let mut found = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(Ok(id))) = (fields.next(), fields.nth(1).map(str::parse)) {
            found.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nuser:x:1000:100::/home/user:\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:user,other\nusers:x:100:user\n";

    #[test]
    fn user_has_its_groups_once() {
        let user = find_in("user", PASSWD, GROUP).unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1000, 100, vec![100, 27]));
        assert_eq!((user.home, user.shell.as_str()), (PathBuf::from("/home/user"), "/bin/sh"));
    }

    #[test]
    fn unknown_user_is_not_found() {
        assert_eq!(find_in("broken", PASSWD, GROUP), None);
        assert_eq!(find_in("nobody", PASSWD, GROUP), None);
    }

    #[test]
    fn root_exists_without_files() {
        assert_eq!(find_in("root", "", "").unwrap().home, PathBuf::from("/root"));
    }
}
