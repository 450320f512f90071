//! curl, apt, pip, git and node in a VM whose policy allows some names, and web servers beyond the host.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use volt_tests::web::{Scheme, Web};
use volt_tests::{need, needs};

use super::network::{Net, Resolver};

const FAR: &str = "192.0.2.77";
const NAMES: &[&str] = &[
    "files.good.test",
    "git.good.test",
    "pypi.good.test",
    "deb.good.test",
    "evil.test",
    "good.test.evil.test",
];

/// Functions that get a file from a server by its name, each with another client, and print its content.
const CLIENTS: &str = r#"
export CURL_CA_BUNDLE=/given/ca.pem GIT_SSL_CAINFO=/given/ca.pem PIP_CERT=/given/ca.pem
export NODE_EXTRA_CA_CERTS=/given/ca.pem HOME=/root
by_curl() { curl -sS --fail --max-time 60 "$@"; }
by_node() {
    node -e 'fetch(process.argv[1]).then(answer => answer.text())
        .then(text => process.stdout.write(text)).catch(() => process.exit(1))' "$1"
}
by_git() { rm -rf /clone && git clone -q "https://$1/demo.git" /clone && cat /clone/file; }
by_pip() {
    rm -rf /modules
    pip install -q --no-input --no-cache-dir --disable-pip-version-check --retries 0 --break-system-packages \
        --target /modules --index-url "https://$1/simple" volt-demo &&
        python3 -c 'import sys; sys.path.append("/modules"); import volt_demo; print(volt_demo.TEXT)'
}
by_apt() {
    mkdir -p /var/lib/dpkg /var/lib/apt/lists/partial /var/cache/apt/archives/partial
    touch /var/lib/dpkg/status
    rm -rf /var/lib/apt/lists/*_* /package && mkdir /package && cd /package
    echo "deb [trusted=yes] http://$1/debian ./" >/etc/apt/sources.list
    apt-get -qq -o APT::Sandbox::User=root -o Acquire::Retries=0 -o APT::Update::Error-Mode=any update &&
        apt-get -qq -o APT::Sandbox::User=root download volt-demo && dpkg -x volt-demo*.deb /package &&
        cat /package/usr/share/volt-demo/file
}
"#;

#[test]
fn clients_get_from_allowed_names_and_from_no_others() {
    needs!(kvm, linux, agent, network, net_clients);
    let net = Net::new();
    let given = need::net_clients_directory();
    let scratch = net.images.names.scratch();
    let [site, shared] = ["site", "shared"].map(|name| scratch.path(name));
    tar::Archive::new(File::open(given.join("site.tar")).unwrap()).unpack(&site).unwrap();
    let web = Web::new(&site, NAMES, "https://evil.test/file");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("ca.pem"), web.authority()).unwrap();
    fs::write(shared.join("clients"), CLIENTS).unwrap();
    fs::remove_file(net.images.data().join("images")).unwrap();
    symlink(given.join("data/images"), net.images.data().join("images")).unwrap();
    let mount = format!("{}:/given:ro", shared.display());
    let run = ["run", "-d", "--name", "web", "-v", &mount, "--default-deny", "--allow", "*.good.test:443"];
    let plain = ["--allow", "deb.good.test:80", "--allow", "files.good.test:80"];
    net.run(&[&run[..], &plain, &["net-clients:1", "sleep", "100000"]].concat()).succeeded();
    let (far, _cable) = net.network.beyond(&[&format!("{FAR}/24")]);
    let resolver = Resolver::new(&net.network);
    let listeners = [(443, Scheme::Https), (80, Scheme::Http)]
        .map(|(port, scheme)| (far.listen(&format!("{FAR}:{port}")), scheme));
    let has_ended = AtomicBool::new(false);
    scope(|scope| {
        let _ends = resolver.serve(scope);
        let _end = EndOnDrop(&has_ended);
        for (listener, scheme) in &listeners {
            scope.spawn(|| web.serve(listener, *scheme, &has_ended));
        }
        let ask =
            |script: &str| net.run(&["exec", "web", "sh", "-c", &format!(". /given/clients; {script}")]);
        for (script, content) in ALLOWED {
            let outcome = ask(script);
            assert_eq!((outcome.status, &*outcome.stdout), (0, *content), "{script}: {outcome:?}");
        }
        let seen = web.requests();
        for script in DENIED {
            let outcome = ask(script);
            assert!(outcome.status != 0 && !outcome.stdout.contains("a file of"), "{script}: {outcome:?}");
        }
        let last = &web.requests()[seen.len()..];
        assert_eq!(last, ["https for files.good.test: files.good.test /away"], "nothing but the way there");
    });
    for host in ["files", "git", "pypi"] {
        let prefix = format!("https for {host}.good.test: {host}.good.test ");
        assert!(web.requests().iter().any(|request| request.starts_with(&prefix)), "{:?}", web.requests());
    }
    assert!(web.requests().iter().all(|request| !request.contains("evil")), "{:?}", web.requests());
    net.images.names.ok("kill web");
}

/// Ends the servers, also when the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Scripts, and what they print.
const ALLOWED: &[(&str, &str)] = &[
    ("by_curl https://files.good.test/file", "a file of the site\n"),
    ("by_curl --tls-max 1.2 https://files.good.test/file", "a file of the site\n"),
    (
        "by_curl http://files.good.test/file http://files.good.test/file",
        "a file of the site\na file of the site\n",
    ),
    ("by_node https://files.good.test/file", "a file of the site\n"),
    ("by_git git.good.test", "a file of the repository\n"),
    ("by_pip pypi.good.test", "a module of the project\n"),
    ("by_apt deb.good.test", "a file of the package\n"),
];

/// Scripts that fail. The addresses of allowed names are open to these names alone.
const DENIED: &[&str] = &[
    "by_curl https://evil.test/file",
    "by_curl https://good.test.evil.test/file",
    "by_curl https://192.0.2.77/file",
    "by_curl --insecure https://192.0.2.77/file",
    "by_curl --connect-to evil.test:443:files.good.test:443 https://evil.test/file",
    "by_curl --tls-max 1.2 --connect-to evil.test:443:files.good.test:443 https://evil.test/file",
    "by_curl -H 'Host: evil.test' http://files.good.test/file",
    "by_curl --resolve evil.test:80:192.0.2.77 http://evil.test/file",
    "by_curl http://192.0.2.77/file",
    "by_curl http://pypi.good.test/file",
    "by_curl -L https://files.good.test/away",
    "by_node https://evil.test/file",
    "by_git evil.test",
    "git -c http.curloptResolve=evil.test:443:192.0.2.77 clone -q https://evil.test/demo.git /other",
    "by_pip evil.test",
    "by_apt evil.test",
    "by_apt files.good.test.evil.test",
];
