//! Users as docker's `-u` names them: `USER[:GROUP]`, each a name or a number.

use super::{User, groups, text_of};

/// Finds a user of the image. A file that is missing has no entries.
pub fn find_spec(spec: &str) -> Result<User, String> {
    find_in(spec, &text_of("/etc/passwd"), &text_of("/etc/group"))
}

/// As Docker does: a name comes before a number, a number needs no entry, and a given group replaces all
/// groups of the user.
fn find_in(spec: &str, passwd: &str, group: &str) -> Result<User, String> {
    let (wanted, wanted_group) =
        spec.split_once(':').map_or((spec, None), |(user, group)| (user, Some(group)));
    let wanted = if wanted.is_empty() { "0" } else { wanted };
    let number = wanted.parse::<u32>().ok();
    let users = || passwd.lines().filter_map(User::from_line);
    let named = users().find(|user| user.name == wanted);
    let found = named.or_else(|| users().find(|user| Some(user.uid) == number));
    let mut user = match (found, number) {
        (Some(found), _) => found.with_groups(group),
        (None, Some(uid)) => User::numbered(uid),
        (None, None) if wanted == "root" => User::root().with_groups(group),
        (None, None) => return Err(format!("/etc/passwd of the image has no user {wanted}")),
    };
    if let Some(wanted) = wanted_group.filter(|group| !group.is_empty()) {
        let entry = groups(group).find(|(name, ..)| *name == wanted).map(|(_, number, _)| number);
        user.gid = entry
            .or_else(|| wanted.parse().ok())
            .ok_or_else(|| format!("/etc/group of the image has no group {wanted}"))?;
        user.groups = vec![user.gid];
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# comment\nbad:x:y:0::/:\n\
                          app:x:1000:100:An app:/srv/app:/bin/sh\n1000:x:7:8::/seven:\nshort:x:9:9\n";
    const GROUP: &str = "root:x:0:\nwheel:x:10:root,app\nadm:x:4: app \nvideo:x:44:other\nbad:x:z:app\n";

    #[test]
    fn names_and_numbers_are_found() {
        let cases: [(_, _, &[u32], _); 11] = [
            ("", 0, &[0, 10], "/root"),
            ("root", 0, &[0, 10], "/root"),
            ("app", 1000, &[100, 10, 4], "/srv/app"),
            // A user with this name comes before the user with this number.
            ("1000", 7, &[8], "/seven"),
            ("9", 9, &[9], "/"),
            ("5000", 5000, &[0], "/"),
            ("app:", 1000, &[100, 10, 4], "/srv/app"),
            ("app:video", 1000, &[44], "/srv/app"),
            ("app:55", 1000, &[55], "/srv/app"),
            ("5000:adm", 5000, &[4], "/"),
            (":4", 0, &[4], "/root"),
        ];
        for (spec, uid, groups, home) in cases {
            let found = find_in(spec, PASSWD, GROUP).unwrap();
            let told = (found.uid, found.gid, found.groups.as_slice(), found.home.to_str());
            assert_eq!(told, (uid, groups[0], groups, Some(home)), "{spec}");
        }
    }

    #[test]
    fn root_needs_no_files() {
        for spec in ["0", "root", ""] {
            assert_eq!(find_in(spec, "", ""), Ok(User::root()));
        }
    }

    #[test]
    fn unknown_name_is_refused_with_its_file() {
        for (spec, why) in [
            ("nobody", "/etc/passwd of the image has no user nobody"),
            ("bad", "/etc/passwd of the image has no user bad"),
            ("-1", "/etc/passwd of the image has no user -1"),
            ("app:bad", "/etc/group of the image has no group bad"),
        ] {
            assert_eq!(find_in(spec, PASSWD, GROUP), Err(why.to_owned()));
        }
    }
}
