//! Pulls from registries that are slow, strict, broken or hostile.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use volt_tests::program::binary;
use volt_tests::registry::{Registry, Reply, Request};
use volt_tests::{Outcome, Scratch, limited, needs, wait_until};

/// A user with images of its own.
struct User(Scratch);

impl User {
    fn new() -> Self {
        let user = Self(Scratch::new());
        fs::create_dir(user.0.path("home")).unwrap();
        user
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("image").args(words).env("VOLT_DATA_DIR", self.0.path("data"));
        command.env("HOME", self.0.path("home")).env_remove("REGISTRY_AUTH_FILE").env_remove("DOCKER_CONFIG");
        command.env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn image(&self, words: &[&str]) -> Outcome {
        Outcome::of_command(&mut self.command(words))
    }

    fn pull(&self, registry: &Registry, name: &str) -> Outcome {
        self.image(&["pull", &format!("{}/{name}", registry.address())])
    }

    /// Checks that a failed pull has left nothing, and returns its error.
    fn refused(&self, outcome: Outcome) -> String {
        assert_eq!(outcome.status, 1, "{outcome:?}");
        let listed: Value = serde_json::from_str(&self.image(&["ls", "--json"]).stdout).unwrap();
        assert_eq!(listed, serde_json::json!([]), "{outcome:?}");
        assert!(self.left("partial").is_empty(), "{outcome:?}: {:?}", self.left("partial"));
        outcome.stderr
    }

    fn left(&self, directory: &str) -> Vec<PathBuf> {
        let path = self.0.path("data/images").join(directory);
        fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}

/// Directories of two layers, the second with a file of 3 MiB that gzip cannot shrink.
fn layers(scratch: &Scratch) -> [PathBuf; 2] {
    let [low, high] = ["low", "high"].map(|name| scratch.path(name));
    fs::create_dir_all(low.join("etc")).unwrap();
    fs::write(low.join("etc/motd"), "hello\n").unwrap();
    fs::create_dir_all(high.join("srv")).unwrap();
    let mut word = 1u64;
    let noise = (0..3 << 17).flat_map(|_| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.to_le_bytes()
    });
    fs::write(high.join("srv/noise"), noise.collect::<Vec<_>>()).unwrap();
    [low, high]
}

fn with_image(registry: &Registry, user: &User) -> volt_tests::registry::Served {
    let [low, high] = layers(&user.0);
    registry.serve_image("app", "1", &[&low, &high])
}

fn limited_to_the_end(child: Child) -> Output {
    limited("the pull ends", || child.wait_with_output()).unwrap()
}

fn is_blob(request: &Request) -> bool {
    request.path.contains("/blobs/")
}

#[test]
fn layers_come_once_however_many_pulls_want_them() {
    let (registry, user) = (Registry::start(|_, _| None), User::new());
    let served = with_image(&registry, &user);
    let [low, _] = layers(&user.0);
    registry.serve_image("other", "1", &[&low]);
    let name = |image: &str| format!("{}/{image}", registry.address());
    let pulls: Vec<_> = ["app:1", "other:1", "app:1", "app:1"]
        .map(|image| user.command(&["pull", &name(image)]).spawn().unwrap())
        .into_iter()
        .map(|mut pull| pull.wait().unwrap().success())
        .collect();
    assert_eq!(pulls, [true; 4]);
    assert_eq!(user.pull(&registry, "app:1").status, 0);
    for layer in &served.layers {
        assert_eq!(registry.asked(layer).len(), 1, "{layer}");
    }
    // Each with its stream.
    assert_eq!(user.left("layers").len(), 4);
    let inspected: Value = serde_json::from_str(&user.image(&["inspect", &name("app:1")]).stdout).unwrap();
    assert_eq!(inspected["manifest"], served.manifest.as_str());
    assert_eq!(inspected["config"]["config"]["Cmd"][0], "/bin/sh");
    let removed = user.image(&["rm", &name("app:1")]);
    assert!(removed.stdout.contains("removed 1 layers"), "{removed:?}");
}

#[test]
fn pull_by_digest_wants_that_digest() {
    let (registry, user) = (Registry::start(|_, _| None), User::new());
    let served = with_image(&registry, &user);
    assert_eq!(user.pull(&registry, &format!("app@{}", served.manifest)).status, 0);
    let other = format!("sha256:{}", "0".repeat(64));
    registry.put(format!("/v2/app/manifests/{other}"), "application/json", b"{}".to_vec());
    let outcome = user.pull(&registry, &format!("app@{other}"));
    assert!(outcome.status == 1 && outcome.stderr.contains("is expected"), "{outcome:?}");
}

#[test]
fn login_of_dockers_file_gets_a_token() {
    let registry = Registry::start(|request, _| {
        if request.path.starts_with("/token") {
            // Basic me:secret.
            let known = request.headers.get("authorization").is_some_and(|it| it == "Basic bWU6c2VjcmV0");
            let body = if known { br#"{"token": "good"}"#.to_vec() } else { Vec::new() };
            return Some(Reply::Status(if known { 200 } else { 401 }, Vec::new(), body));
        }
        let is_in = request.headers.get("authorization").is_some_and(|it| it == "Bearer good");
        let realm = format!(
            "Bearer realm=\"http://{}/token\",service=\"test\",scope=\"repository:app:pull\"",
            request.headers["host"]
        );
        (!is_in).then(|| Reply::Status(401, vec![("WWW-Authenticate", realm)], Vec::new()))
    });
    let user = User::new();
    with_image(&registry, &user);
    let error = user.refused(user.pull(&registry, "app:1"));
    assert!(error.contains("refuses access (401)") && error.contains("docker login 127.0.0.1"), "{error}");
    fs::create_dir(user.0.path("home/.docker")).unwrap();
    let auths = serde_json::json!({"auths": {registry.address(): {"auth": "bWU6c2VjcmV0"}}});
    fs::write(user.0.path("home/.docker/config.json"), auths.to_string()).unwrap();
    assert_eq!(user.pull(&registry, "app:1").status, 0);
    let tokens = registry.asked("/token");
    assert!(tokens.last().unwrap().path.contains("scope=repository%3Aapp%3Apull"), "{tokens:?}");
}

#[test]
fn logins_come_from_helpers_and_from_podmans_file() {
    let registry = Registry::start(|request, _| {
        let is_in = request.headers.get("authorization").is_some_and(|it| it == "Basic bWU6c2VjcmV0");
        let basic = || vec![("WWW-Authenticate", "Basic realm=\"test\"".to_owned())];
        (!is_in).then(|| Reply::Status(401, basic(), Vec::new()))
    });
    let name = format!("{}/app:1", registry.address());
    // docker's helper, of which the configuration has the name alone.
    let user = User::new();
    with_image(&registry, &user);
    let helper = user.0.path("docker-credential-test");
    // It reads its question, as helpers do: the end of one that does not may come before the question.
    fs::write(&helper, "#!/bin/sh\nread server\necho '{\"Username\": \"me\", \"Secret\": \"secret\"}'\n")
        .unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(user.0.path("home/.docker")).unwrap();
    fs::write(user.0.path("home/.docker/config.json"), r#"{"credsStore": "test"}"#).unwrap();
    let path = format!("{}:{}", user.0.directory().display(), std::env::var("PATH").unwrap());
    let pulled = Outcome::of_command(user.command(&["pull", &name]).env("PATH", path));
    assert_eq!(pulled.status, 0, "{pulled:?}");
    // podman's file.
    let user = User::new();
    let auths = serde_json::json!({"auths": {registry.address(): {"auth": "bWU6c2VjcmV0"}}});
    fs::write(user.0.path("auth.json"), auths.to_string()).unwrap();
    let mut command = user.command(&["pull", &name]);
    let pulled = Outcome::of_command(command.env("REGISTRY_AUTH_FILE", user.0.path("auth.json")));
    assert_eq!(pulled.status, 0, "{pulled:?}");
}

#[test]
fn interrupt_ends_a_pull_that_waits_for_its_registry() {
    let limited = || Reply::Status(429, vec![("Retry-After", "55".to_owned())], Vec::new());
    let registry = Registry::start(move |request, _| is_blob(request).then(limited));
    let user = User::new();
    with_image(&registry, &user);
    let name = format!("{}/app:1", registry.address());
    let child = user.command(&["pull", &name]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the registry is asked for a blob", || !registry.asked("/blobs/").is_empty());
    // A test run in the background of a shell ignores SIGINT, and so do its children.
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let done = limited_to_the_end(child);
    assert_eq!(done.status.code(), Some(143), "{done:?}");
    assert_eq!(registry.asked("/blobs/").len(), 1, "it does not wait for the registry");
    assert!(user.left("partial").is_empty());
}

#[test]
fn host_to_which_a_registry_leads_gets_no_login() {
    let other = Registry::start(|request, _| {
        let realm = format!("Bearer realm=\"http://{}/token\",service=\"test\"", request.headers["host"]);
        Some(Reply::Status(401, vec![("WWW-Authenticate", realm)], Vec::new()))
    });
    let elsewhere = format!("http://{}/elsewhere", other.address());
    let registry = Registry::start(move |request, _| {
        is_blob(request).then(|| Reply::Status(307, vec![("Location", elsewhere.clone())], Vec::new()))
    });
    let user = User::new();
    with_image(&registry, &user);
    fs::create_dir(user.0.path("home/.docker")).unwrap();
    let auths = serde_json::json!({"auths": {registry.address(): {"auth": "bWU6c2VjcmV0"}}});
    fs::write(user.0.path("home/.docker/config.json"), auths.to_string()).unwrap();
    let error = user.refused(user.pull(&registry, "app:1"));
    assert!(error.contains("refuses access (401)"), "{error}");
    assert!(!other.asked("/elsewhere").is_empty() && other.asked("/token").is_empty());
    assert!(other.asked("").iter().all(|request| !request.headers.contains_key("authorization")));
}

#[test]
fn registry_that_asks_to_wait_is_asked_again() {
    let limited = |wait: &str| Reply::Status(429, vec![("Retry-After", wait.to_owned())], Vec::new());
    let registry =
        Registry::start(move |request, number| (is_blob(request) && number == 0).then(|| limited("1")));
    let user = User::new();
    with_image(&registry, &user);
    assert_eq!(user.pull(&registry, "app:1").status, 0);
    let registry = Registry::start(move |_, _| Some(limited("3600")));
    let other = User::new();
    let error = other.refused(other.pull(&registry, "app:1"));
    assert!(error.contains("limits the number of requests: try again in 3600 s"), "{error}");
    assert_eq!(registry.asked("").len(), 1);
}

#[test]
fn blob_goes_on_where_its_connection_broke() {
    for knows_ranges in [true, false] {
        let registry = Registry::start(move |request, number| {
            let is_whole = !knows_ranges && request.headers.contains_key("range");
            match number {
                _ if !is_blob(request) => None,
                0 | 1 if !is_whole => Some(Reply::Cut(100_000)),
                _ if is_whole => Some(Reply::Whole),
                _ => None,
            }
        });
        let user = User::new();
        let served = with_image(&registry, &user);
        let outcome = user.pull(&registry, "app:1");
        assert_eq!(outcome.status, 0, "{outcome:?}");
        let ranges: Vec<_> =
            registry.asked(&served.layers[1]).iter().map(|it| it.headers.get("range").cloned()).collect();
        assert_eq!(ranges[..2], [None, Some("bytes=100000-".to_owned())], "{knows_ranges}");
    }
}

#[test]
fn hostile_answers_are_refused_and_leave_nothing() {
    let digest = |byte: char| format!("sha256:{}", byte.to_string().repeat(64));
    type Conduct = Box<dyn Fn(&Request, usize) -> Option<Reply> + Send + Sync>;
    let body = |path: &'static str, body: Vec<u8>| -> Conduct {
        Box::new(move |request, _| {
            request.path.contains(path).then(|| Reply::Status(200, Vec::new(), body.clone()))
        })
    };
    let manifest = |layer: &str| {
        let blob =
            |kind: &str| format!(r#"{{"mediaType": "{kind}", "digest": "{}", "size": 5}}"#, digest('a'));
        let config = blob("application/vnd.oci.image.config.v1+json");
        format!(r#"{{"schemaVersion": 2, "config": {config}, "layers": [{}]}}"#, blob(layer)).into_bytes()
    };
    let endless: Conduct =
        Box::new(|request, _| request.path.contains("/manifests/").then_some(Reply::Endless));
    let missing: Conduct =
        Box::new(|request, _| is_blob(request).then(|| Reply::Status(404, Vec::new(), Vec::new())));
    for (case, conduct, problem) in [
        ("endless manifest", endless, "is longer than 4194304 bytes"),
        ("large manifest", body("/manifests/", vec![b' '; 100 << 20]), "is longer than 4194304 bytes"),
        ("no manifest", body("/manifests/", b"hello".to_vec()), "expected value"),
        ("another configuration", body("/blobs/", b"{}".to_vec()), "is expected"),
        ("an artifact", body("/manifests/", manifest("application/wasm")), "application/wasm"),
        ("no blobs", missing, "does not exist"),
    ] {
        let (registry, user) = (Registry::start(conduct), User::new());
        with_image(&registry, &user);
        let error = user.refused(user.pull(&registry, "app:1"));
        assert!(error.contains(problem), "{case}: {error}");
        assert!(user.left("layers").is_empty(), "{case}");
    }
}

#[test]
fn layer_that_is_not_its_digest_is_refused() {
    let user = User::new();
    let other = {
        let registry = Registry::start(|_, _| None);
        with_image(&registry, &user).layers[0].clone()
    };
    let registry = Registry::start(move |request, _| {
        let is_it = is_blob(request) && request.path.ends_with(&other);
        // An empty gzip stream.
        let empty = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0".to_vec();
        is_it.then(|| Reply::Status(200, Vec::new(), empty))
    });
    with_image(&registry, &user);
    let error = user.refused(user.pull(&registry, "app:1"));
    assert!(error.contains("has 20 bytes, and"), "{error}");
}

#[test]
fn mirror_is_asked_first_and_the_registry_if_it_fails() {
    let (registry, mirror, user) = (Registry::start(|_, _| None), Registry::start(|_, _| None), User::new());
    with_image(&registry, &user);
    with_image(&mirror, &user);
    let name = format!("{}/app:1", registry.address());
    let option = format!("{}=http://{}", registry.address(), mirror.address());
    assert_eq!(user.image(&["pull", "--mirror", &option, &name]).status, 0);
    assert!(registry.asked("").is_empty());
    let other = User::new();
    let down = format!("{}=http://127.0.0.1:1", registry.address());
    let mut command = other.command(&["pull", &name]);
    assert_eq!(Outcome::of_command(command.env("VOLT_REGISTRY_MIRRORS", down)).status, 0);
    assert!(!registry.asked("/blobs/").is_empty());
}

#[test]
fn unreachable_registry_and_invalid_names_are_refused() {
    let user = User::new();
    for (name, problem) in [
        ("127.0.0.1:1/app", "cannot reach http://127.0.0.1:1/v2/app/manifests/latest"),
        ("UPPER", "no name of an image"),
        ("app@sha256:12", "no name of an image"),
    ] {
        let error = user.refused(user.image(&["pull", name]));
        assert!(error.contains(problem), "{name}: {error}");
    }
    let missing = user.image(&["inspect", "app"]);
    assert!(missing.stderr.contains("no image has the name app"), "{missing:?}");
    let nothing = user.image(&["load", "/nonexistent"]);
    assert!(nothing.status == 1 && nothing.stderr.contains("/nonexistent"), "{nothing:?}");
}

#[test]
fn full_disk_ends_a_pull_and_lists_nothing() {
    needs!(root);
    let (registry, user) = (Registry::start(|_, _| None), User::new());
    with_image(&registry, &user);
    let data = user.0.path("data");
    fs::create_dir(&data).unwrap();
    let mounted = |path: &Path, size: &str| {
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(path)
            .status();
        assert!(done.unwrap().success());
    };
    mounted(&data, "2m");
    let error = user.refused(user.pull(&registry, "app:1"));
    let _ = Command::new("umount").arg(&data).status();
    assert!(error.contains("No space left on device"), "{error}");
}
