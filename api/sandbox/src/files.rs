//! Files of a sandbox.

use volt_agent_client as client;
use volt_agent_client::{Agent, FileEntry};

use crate::error::{Error, Result};

/// The files of a sandbox, from [`Sandbox::files`](crate::Sandbox::files). Calls act as root in the guest.
/// Paths without a slash in front begin at root's home.
#[derive(Clone, Debug)]
pub struct Files {
    agent: Agent,
    sandbox: String,
}

impl Files {
    pub(crate) fn new(agent: Agent, sandbox: &str) -> Self {
        Self { agent, sandbox: sandbox.to_owned() }
    }

    /// Reads a file of at most 1 GiB.
    ///
    /// # Errors
    /// It is missing ([`Error::is_not_found`]), no regular file or longer, or the agent sends no byte for
    /// 60 s.
    pub fn read(&self, path: impl AsRef<str>) -> Result<Vec<u8>> {
        self.done("read", path.as_ref(), self.agent.read_file(path.as_ref()))
    }

    /// Writes a file, with missing directories above it. One that exists gets the new content, and keeps its
    /// owner and its mode.
    ///
    /// # Errors
    /// The guest refuses, such as without room, or its agent does not answer.
    pub fn write(&self, path: impl AsRef<str>, content: impl AsRef<[u8]>) -> Result<()> {
        self.done("write", path.as_ref(), self.agent.write_file(path.as_ref(), content.as_ref()))
    }

    /// Lists the entries of a directory, in the order of their names.
    ///
    /// # Errors
    /// It is missing ([`Error::is_not_found`]) or no directory, or the agent does not answer.
    pub fn list(&self, directory: impl AsRef<str>) -> Result<Vec<FileEntry>> {
        self.done("list", directory.as_ref(), self.agent.list_directory(directory.as_ref()))
    }

    /// Removes a file, or a directory with all below it. One that is missing is no error.
    ///
    /// # Errors
    /// The path is empty or `/`, the guest refuses, or its agent does not answer.
    pub fn remove(&self, path: impl AsRef<str>) -> Result<()> {
        self.done("remove", path.as_ref(), self.agent.remove(path.as_ref()))
    }

    /// Whether a path exists, after symlinks.
    ///
    /// # Errors
    /// The agent may not look, or does not answer.
    pub fn exists(&self, path: impl AsRef<str>) -> Result<bool> {
        let found = self.agent.look_at(path.as_ref()).map(|entry| entry.is_some());
        self.done("look at", path.as_ref(), found)
    }

    /// Makes a directory, and those above it.
    ///
    /// # Errors
    /// It exists, the guest refuses, or its agent does not answer.
    pub fn make_dir(&self, path: impl AsRef<str>) -> Result<()> {
        self.done("make directory", path.as_ref(), self.agent.make_directory(path.as_ref()))
    }

    fn done<T>(&self, act: &str, path: &str, result: client::Result<T>) -> Result<T> {
        result.map_err(|cause| Error::of_agent(&self.sandbox, &format!("{act} {path}"), cause))
    }
}

#[cfg(test)]
mod tests {
    use volt_agent_client::FileKind;

    use super::*;
    use crate::testing::{Answer, FakeAgent, plain};

    fn files(answers: &[(&str, &[u8])]) -> (Files, FakeAgent) {
        let answers = answers.iter().map(|(status, body)| Answer::Whole(plain(status, body)));
        let fake = FakeAgent::new(answers.collect());
        (Files::new(fake.agent(), "web"), fake)
    }

    #[test]
    fn content_is_bytes_and_paths_are_encoded() {
        let (files, fake) = files(&[("200 OK", b"a\0\xff"), ("200 OK", b"[]")]);
        assert_eq!(files.read("/a b&c").unwrap(), b"a\0\xff");
        assert!(fake.requests.recv().unwrap().starts_with("GET /files?path=%2Fa%20b%26c HTTP/1.0\r\n"));
        files.write("x", "content").unwrap();
        let request = fake.requests.recv().unwrap();
        assert!(
            request.starts_with("POST /files?path=x ") && request.ends_with("\r\n\r\ncontent"),
            "{request}"
        );
        assert!(request.contains("Content-Type: application/octet-stream"), "{request}");
    }

    #[test]
    fn file_that_ends_early_is_an_error() {
        let fake = FakeAgent::new(vec![Answer::Whole(
            b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nshort".to_vec(),
        )]);
        let error = Files::new(fake.agent(), "web").read("/a").unwrap_err().to_string();
        assert!(error.starts_with("cannot read /a in sandbox web: its agent does not answer"), "{error}");
    }

    #[test]
    fn missing_file_is_told_from_other_refusals() {
        let (files, _fake) = files(&[
            ("404 Not Found", br#"{"code":404,"message":"cannot read /a: No such file"}"#),
            ("404 Not Found", br#"{"code":"not_found","message":"no"}"#),
            ("403 Forbidden", br#"{"code":"permission_denied","message":"no"}"#),
        ]);
        let error = files.read("/a").unwrap_err();
        assert_eq!(error.to_string(), "cannot read /a in sandbox web: cannot read /a: No such file");
        assert!(error.is_not_found());
        assert!(!files.exists("/a").unwrap());
        assert!(!files.exists("/a").unwrap_err().is_not_found());
    }

    #[test]
    fn guest_sends_neither_more_than_a_file_nor_a_path_as_a_name() {
        let head = "HTTP/1.0 200 OK\r\nContent-Length:";
        let longer = format!("{head} 1\r\n\r\nab").into_bytes();
        let huge = format!("{head} {}\r\n\r\n", (1_u64 << 30) + 1).into_bytes();
        let fake = FakeAgent::new(vec![Answer::Open(longer), Answer::Open(huge)]);
        let files = Files::new(fake.agent(), "web");
        let error = files.read("/a").unwrap_err().to_string();
        assert!(error.ends_with("its agent sends more of a file than its length"), "{error}");
        let error = files.read("/a").unwrap_err().to_string();
        assert!(error.ends_with("it has more than 1 GiB; copy it by volt-vmm cp"), "{error}");
        for name in ["../x", "..", ""] {
            let list = format!(r#"{{"entries":[{{"name":"{name}","type":"FILE_TYPE_FILE","path":"/"}}]}}"#);
            let fake = FakeAgent::new(vec![Answer::Whole(plain("200 OK", list.as_bytes()))]);
            let error = Files::new(fake.agent(), "web").list("/d").unwrap_err().to_string();
            assert!(error.contains("its agent lists what is no name"), "{error}");
        }
    }

    #[test]
    fn entries_have_kinds_and_lengths_in_the_order_of_their_names() {
        let list = br#"{"entries":[
            {"name":"b","type":"FILE_TYPE_FILE","path":"/d/b","size":"9007199254740993","mode":420,"new":1},
            {"name":"a","type":"FILE_TYPE_DIRECTORY","path":"/d/a","symlinkTarget":"x"}]}"#;
        let (files, _fake) = files(&[("200 OK", list), ("200 OK", b"{}")]);
        let found = files.list("/d").unwrap();
        assert_eq!((&*found[0].name, found[0].kind, found[0].size), ("a", FileKind::Directory, 0));
        assert_eq!(found[0].symlink_target.as_deref(), Some("x"));
        assert_eq!((found[1].kind, found[1].size, found[1].mode), (FileKind::File, (1 << 53) + 1, 0o644));
        assert_eq!(files.list("/empty").unwrap(), []);
    }
}
