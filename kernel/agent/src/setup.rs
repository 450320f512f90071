//! Settings that `/init` makes for all calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use hyper::header::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::connect::call::basic_name;
use crate::connect::{Code, RpcError};
use crate::kept::Kept;
use crate::users::{self, User};

/// The header that names the user of a call as `USER[:GROUP]`, in place of HTTP's basic authentication.
const USER: &str = "volt-user";

/// Settings, and what follows from them. All of it lives in one thread.
#[derive(Debug, Default)]
pub struct Setup {
    /// Settings of `/init`.
    pub settings: RefCell<Settings>,
    kept: Option<Kept>,
}

/// Settings of `/init`.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Settings {
    /// The token that calls must carry.
    pub token: Option<String>,
    /// Variables of all commands.
    pub envs: BTreeMap<String, String>,
    /// The user of calls that name none (default: root).
    pub user: Option<String>,
    /// The directory of commands that name none (default: the user's home).
    pub workdir: Option<String>,
}

impl Setup {
    /// Goes on with the settings of an earlier agent, and keeps all for a later one.
    pub fn kept(kept: Kept) -> io::Result<Self> {
        let settings = kept.load()?.unwrap_or_default();
        Ok(Self { settings: RefCell::new(settings), kept: Some(kept) })
    }

    /// Keeps the settings.
    pub fn save(&self) -> io::Result<()> {
        self.kept.as_ref().map_or(Ok(()), |kept| kept.save(&*self.settings.borrow()))
    }

    /// The user whom a call's headers name, else the default one.
    pub fn caller(&self, headers: &HeaderMap) -> Result<User, RpcError> {
        let unknown = |why| RpcError::new(Code::Unauthenticated, why);
        match headers.get(USER).filter(|spec| !spec.is_empty()) {
            None => self.user(basic_name(headers)?.as_deref()),
            Some(spec) => {
                let spec = spec.to_str().map_err(|_| unknown(format!("the header {USER} is no text")))?;
                users::find_spec(spec).map_err(unknown)
            }
        }
    }

    /// The user of a call.
    pub fn user(&self, name: Option<&str>) -> Result<User, RpcError> {
        let settings = self.settings.borrow();
        let name = name.or(settings.user.as_deref()).unwrap_or("root");
        users::find(name)
            .ok_or_else(|| RpcError::new(Code::Unauthenticated, format!("no user {name} in /etc/passwd")))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn caller(headers: &[(&'static str, &'static str)]) -> Result<User, Code> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Setup::default().caller(&map).map_err(|error| error.code)
    }

    #[test]
    fn header_names_the_user_before_the_basic_authentication() {
        // "root:"
        let basic = ("authorization", "bAsIc cm9vdDo=");
        assert_eq!(caller(&[basic]).unwrap().uid, 0);
        let user = caller(&[basic, ("volt-user", "54321:12")]).unwrap();
        assert_eq!((user.uid, user.groups), (54_321, vec![12]));
        assert_eq!(caller(&[("volt-user", "")]).unwrap().uid, 0);
    }

    #[test]
    fn next_agent_has_the_token_of_the_last_one() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let next = file.try_clone().unwrap();
        let setup = Setup::kept(Kept::new(file)).unwrap();
        setup.settings.borrow_mut().token = Some("secret".to_owned());
        setup.save().unwrap();
        let next = Setup::kept(Kept::new(next)).unwrap();
        assert_eq!(next.settings.borrow().token.as_deref(), Some("secret"));
    }

    #[test]
    fn unknown_user_and_malformed_authentication_are_refused() {
        for header in [
            ("volt-user", "no-such-user"),
            ("volt-user", "0:no-such-group"),
            ("authorization", "Basic !"),
            ("authorization", "Basic"),
            // "no-such-user:"
            ("authorization", "Basic bm8tc3VjaC11c2VyOg=="),
        ] {
            assert_eq!(caller(&[header]), Err(Code::Unauthenticated), "{header:?}");
        }
    }
}
