//! Images from distribution's own registry, with a login and for two kinds of processors.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use volt_image::digest;
use volt_tests::need::clients_directory;
use volt_tests::program::binary;
use volt_tests::registry::Registry;
use volt_tests::{Outcome, Scratch, needs, wait_until};

/// `me` with the password `secret`, as htpasswd writes it with bcrypt.
const PASSWORDS: &str = "me:$2b$04$79CknxS6ZXONR3mwOUbaoe4zi6bdZ8xuls7/LF5GtbfKZYvnnqORe\n";
/// The same in base64.
const LOGIN: &str = "bWU6c2VjcmV0";

/// A registry that wants a login, killed on drop.
struct Real {
    process: Child,
    address: String,
}

impl Real {
    fn start(scratch: &Scratch) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let [config, passwords, data] = ["config.yml", "htpasswd", "data"].map(|name| scratch.path(name));
        fs::write(&passwords, PASSWORDS).unwrap();
        let text = json!({
            "version": 0.1, "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": data}},
            "http": {"addr": address},
            "auth": {"htpasswd": {"realm": "test", "path": passwords}},
        });
        // JSON is YAML.
        fs::write(&config, text.to_string()).unwrap();
        let mut command = Command::new(clients_directory().join("registry"));
        let process = command.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let registry = Self { process: process.unwrap(), address };
        wait_until("the registry listens", || TcpStream::connect(&registry.address).is_ok());
        registry
    }

    /// Asks, and returns the status and the header Location.
    fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Basic {LOGIN}\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let location = answer.lines().find_map(|line| line.strip_prefix("Location: "));
        (status, location.unwrap_or_default().to_owned())
    }

    fn put(&self, path: &str, kind: &str, content: &[u8]) {
        if let Some((repository, _)) = path.split_once("/blobs/") {
            let (status, location) = self.ask("POST", &format!("{repository}/blobs/uploads/"), kind, b"");
            assert_eq!(status, 202, "{path}");
            let upload = location.strip_prefix(&format!("http://{}", self.address)).unwrap_or(&location);
            let digest = digest::of(content);
            assert_eq!(self.ask("PUT", &format!("{upload}&digest={digest}"), kind, content).0, 201, "{path}");
        } else {
            assert_eq!(self.ask("PUT", path, kind, content).0, 201, "{path}");
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn image_of_this_processor_is_pulled_with_a_login() {
    needs!(registry);
    let scratch = Scratch::new();
    let layer = scratch.path("layer");
    fs::create_dir(&layer).unwrap();
    fs::write(layer.join("hello"), "hello\n").unwrap();
    let (registry, source) = (Real::start(&scratch), Registry::start(|_, _| None));
    let served = source.serve_image("app", "amd64", &[&layer]);
    let mut files = source.files();
    // Blobs come before the manifests that name them.
    files.sort_by_key(|(path, ..)| path.contains("/manifests/"));
    files.iter().for_each(|(path, kind, content)| registry.put(path, kind, content));
    let manifest = files.iter().find(|(path, ..)| path.ends_with(&served.manifest)).unwrap();
    let of = |architecture: &str| {
        json!({
            "mediaType": manifest.1, "digest": served.manifest, "size": manifest.2.len(),
            "platform": {"os": "linux", "architecture": architecture},
        })
    };
    let kind = "application/vnd.oci.image.index.v1+json";
    let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": [of("amd64")]});
    registry.put("/v2/app/manifests/1", kind, index.to_string().as_bytes());

    let home = scratch.path("home");
    fs::create_dir_all(home.join(".docker")).unwrap();
    let pull = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["image", "pull"]).args(words).arg(format!("{}/app:1", registry.address));
        command.env("HOME", &home).env("VOLT_DATA_DIR", scratch.path("images"));
        command.env_remove("REGISTRY_AUTH_FILE").env_remove("XDG_RUNTIME_DIR").env_remove("DOCKER_CONFIG");
        Outcome::of_command(&mut command)
    };
    let refused = pull(&[]);
    assert!(refused.status == 1 && refused.stderr.contains("refuses access (401)"), "{refused:?}");
    let auths = json!({"auths": {&registry.address: {"auth": LOGIN}}});
    fs::write(home.join(".docker/config.json"), auths.to_string()).unwrap();
    let pulled = pull(&[]);
    assert_eq!(pulled.status, 0, "{pulled:?}");
    let other = pull(&["--platform", "linux/arm64"]);
    assert!(other.stderr.contains("no image for linux/arm64, but for: linux/amd64"), "{other:?}");
}
