//! Clients of registries through the proxy, by an allow-list. The hosts are those of each client's own configuration.

use std::collections::BTreeSet;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::egress::{Caller, Site};
use crate::harness::{succeeded, text};
use crate::mounts::Home;

/// Authorities that the clients inside trust. Some trust others by default.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Runs a program of the machine and returns what it prints, or nothing if it fails.
pub(crate) fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).current_dir("/").output().ok()?;
    output.status.success().then(|| text(&output.stdout).trim().to_owned())
}

/// Returns host and port of a URL.
pub(crate) fn host(url: &str) -> Option<(String, u16)> {
    let url: http::Uri = url.parse().ok()?;
    let port = if url.scheme_str()? == "http" { 80 } else { 443 };
    Some((url.host()?.to_owned(), url.port_u16().unwrap_or(port)))
}

/// Returns flags that allow these hosts, or why they cannot be reached.
pub(crate) fn allowing(hosts: &BTreeSet<(String, u16)>) -> Result<Vec<String>, String> {
    let mut flags = Vec::new();
    for (host, port) in hosts {
        let found = (host.as_str(), *port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
        let found: Vec<_> = found.collect();
        let first = found.first().ok_or_else(|| format!("{host} has no address"))?;
        TcpStream::connect_timeout(first, Duration::from_secs(5))
            .map_err(|error| format!("{host}: {error}"))?;
        flags.extend(["--allow".to_owned(), format!("{host}:{port}")]);
        // A mirror of a registry may have an address of the local network.
        flags.extend(found.iter().flat_map(|one| ["--allow-private".to_owned(), one.ip().to_string()]));
    }
    Ok(flags)
}

/// Runs a script in a sandbox that may reach these hosts. `None` if the machine cannot.
fn run(
    test: &str,
    hosts: &BTreeSet<(String, u16)>,
    more: &[&str],
    script: &str,
) -> Option<std::process::Output> {
    assert!(!hosts.is_empty(), "{test}: the client names no host");
    let flags = match allowing(hosts) {
        Ok(flags) => flags,
        Err(reason) => {
            hutch_testkit::note_skip(test, &reason);
            return None;
        }
    };
    Some(inside(&flags, more, script))
}

/// Runs a script in a sandbox with these flags.
fn inside(flags: &[String], more: &[&str], script: &str) -> std::process::Output {
    let site = Site::new();
    // The names lead where they lead on this machine.
    std::fs::copy("/etc/hosts", site.folder.path().join("hosts")).expect("copied");
    let mut options: Vec<&str> = flags.iter().map(String::as_str).collect();
    options.extend_from_slice(more);
    let trust = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"];
    let trust = trust.map(|name| format!("{name}={AUTHORITIES}"));
    options.extend(trust.iter().flat_map(|variable| ["--env", variable]));
    options.extend(["--env", "HOME=/tmp"]);
    site.run(Caller::Root, &options, &["sh", "-euc", script])
}

#[test]
fn apt_updates_its_lists_and_downloads_a_package() {
    hutch_testkit::require!(root);
    let Some(list) = printed("apt-get", &["update", "--print-uris"]) else {
        return hutch_testkit::note_skip("apt-get", "needs apt-get");
    };
    let hosts = list.lines().filter_map(|line| host(line.split('\'').nth(1)?)).collect();
    // Nothing of the machine is changed: folders of its own, and no lock. Translations and metadata are left out.
    let script = "mkdir -p /tmp/lists/partial /tmp/cache/archives/partial && touch /tmp/status && cd /tmp\n\
        apt() { apt-get -qq -o Dir::State=/tmp -o Dir::State::Lists=/tmp/lists -o Dir::State::status=/tmp/status \
            -o Dir::Cache=/tmp/cache -o APT::Sandbox::User= -o Debug::NoLocking=1 -o Acquire::Languages=none \
            -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Retries=1 \"$@\"; }\n\
        apt update && apt download hello && dpkg-deb --field hello_*.deb Package\n";
    let mounts = ["--mount", "/etc/apt:ro"];
    let Some(output) = run("apt-get", &hosts, &mounts, script) else { return };
    assert_eq!(succeeded("apt-get", &output).trim(), "hello", "{}", text(&output.stderr));
    let closed = inside(&["--allow".to_owned(), "none.example".to_owned()], &mounts, script);
    assert!(!closed.status.success() && text(&closed.stdout).is_empty(), "{closed:?}");
}

/// A registry as its client on this machine is configured.
pub(crate) struct Registry {
    pub(crate) hosts: BTreeSet<(String, u16)>,
    /// Flags of `hutch run` by which the client inside is configured alike.
    pub(crate) flags: Vec<String>,
}

impl Registry {
    fn new(hosts: BTreeSet<(String, u16)>, flags: &[&str]) -> Registry {
        Registry { hosts, flags: flags.iter().map(|&flag| flag.to_owned()).collect() }
    }

    /// The index of pip.
    pub(crate) fn of_python() -> Option<Registry> {
        let (index, hosts) = python_index()?;
        Some(Registry::new(hosts, &["--env", &format!("PIP_INDEX_URL={index}")]))
    }

    /// The registry of npm.
    pub(crate) fn of_npm() -> Option<Registry> {
        let registry = printed("npm", &["config", "get", "registry"])?;
        let hosts = host(&registry).into_iter().collect();
        Some(Registry::new(hosts, &["--env", &format!("npm_config_registry={registry}")]))
    }

    /// The proxies of Go.
    pub(crate) fn of_go() -> Option<Registry> {
        let proxies = printed("go", &["env", "GOPROXY"])?;
        let hosts = proxies.split([',', '|']).filter_map(host).collect();
        Some(Registry::new(hosts, &["--env", &format!("GOPROXY={proxies}")]))
    }

    /// The index of cargo, and the host of the packages that it names. Another one than that of crates.io is in its settings.
    pub(crate) fn of_cargo() -> Option<Registry> {
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
        let folder = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home)?;
        let file = folder.join("config.toml");
        let settings = std::fs::read_to_string(&file).unwrap_or_default();
        let replaced = setting(&settings, "[source.crates-io]", "replace-with");
        let mirror = replaced.and_then(|name| setting(&settings, &format!("[source.{name}]"), "registry"));
        let index = mirror.as_deref().unwrap_or("sparse+https://index.crates.io/");
        let index = index.strip_prefix("sparse+")?.trim_end_matches('/');
        let config = printed("curl", &["-sSf", "-m", "20", &format!("{index}/config.json")])?;
        let config: serde_json::Value = serde_json::from_str(&config).ok()?;
        let packages = config["dl"].as_str()?.split('{').next()?;
        let flags = match mirror.is_some() {
            true => vec!["--mount".to_owned(), format!("{}:ro", file.display())],
            false => Vec::new(),
        };
        Some(Registry { hosts: [host(index)?, host(packages)?].into(), flags })
    }
}

/// Returns a text of a table of TOML.
fn setting(toml: &str, table: &str, name: &str) -> Option<String> {
    let lines = toml.lines().map(str::trim).skip_while(|line| *line != table).skip(1);
    let mut lines = lines.take_while(|line| !line.starts_with('['));
    lines.find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| value.trim().trim_matches('"').to_owned())
    })
}

/// Index of Python packages: its address, and the hosts of it and of its files.
pub(crate) fn python_index() -> Option<(String, BTreeSet<(String, u16)>)> {
    let own = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)";
    let configured = printed("/usr/bin/python3", &["-m", "pip", "config", "get", "global.index-url"]);
    let index = configured.or_else(|| printed("/usr/bin/python3", &["-c", own]))?;
    let report =
        ["-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-"];
    let report = [&report[..], &["--break-system-packages", "requests"]].concat();
    let report: serde_json::Value = serde_json::from_str(&printed("/usr/bin/python3", &report)?).ok()?;
    let file = report["install"][0]["download_info"]["url"].as_str()?.to_owned();
    Some((index.clone(), [host(&index)?, host(&file)?].into()))
}

#[test]
fn python_clients_use_their_index() {
    hutch_testkit::require!(root, python);
    let Some((index, hosts)) = python_index() else {
        return hutch_testkit::note_skip("clients of the index of Python", "needs pip and its index");
    };
    let index = index.trim_end_matches('/');
    let script = format!(
        "cd /tmp && /usr/bin/python3 -m venv v && v/bin/pip install -q -i {index}/ requests httpx uv\n\
        v/bin/python -c 'import httpx, requests\n\
        for client in requests, httpx: print(client.get(\"{index}/six/\").status_code)'\n\
        v/bin/uv -q pip install --default-index {index}/ --python v/bin/python --cache-dir /tmp/uv six\n\
        v/bin/python -c 'import six; print(six.__name__)'\n"
    );
    let Some(output) = run("clients of the index of Python", &hosts, &[], &script) else { return };
    assert_eq!(succeeded("pip", &output), "200\n200\nsix\n", "{}", text(&output.stderr));
    // Without the host of the files, the index alone is of no use.
    let only = host(index).into_iter().collect();
    let script =
        format!("cd /tmp && /usr/bin/python3 -m pip download -q --retries 0 --no-deps -i {index}/ six");
    let output = run("pip without the files", &only, &[], &script);
    assert!(hosts.len() == 1 || output.is_none_or(|output| !output.status.success()));
}

#[test]
fn virtual_environment_of_a_project_gets_packages_inside() {
    hutch_testkit::require!(root, user_namespaces, python);
    let test = "packages for a virtual environment";
    let Some(Registry { hosts, flags: configured }) = Registry::of_python() else {
        return hutch_testkit::note_skip(test, "needs pip and its index");
    };
    let flags = match allowing(&hosts) {
        Ok(flags) => [flags, configured].concat(),
        Err(reason) => return hutch_testkit::note_skip(test, &reason),
    };
    let options: Vec<&str> = flags.iter().map(String::as_str).collect();
    for caller in [Caller::Root, Caller::Ordinary] {
        let home = Home::new();
        let venv = home.path("work/venv");
        // Made outside.
        let mut made = Command::new("/usr/bin/python3");
        succeeded("venv", &made.args(["-m", "venv"]).arg(&venv).output().expect("python3"));
        let mut chown = Command::new("chown");
        succeeded("chown", &chown.args(["-R", "1000:1000"]).arg(&venv).output().expect("chown"));
        let script = "cd @/work && venv/bin/pip install -q --disable-pip-version-check six && \
            venv/bin/python -c 'import six, sys; print(six.__name__, sys.prefix)'";
        let output = home.run(caller, &options, script);
        let expected = format!("six {}\n", venv.display());
        assert_eq!(succeeded(&format!("{caller:?}"), &output), expected, "{}", text(&output.stderr));
        // It is there outside too.
        let outside = Command::new(venv.join("bin/python")).args(["-c", "import six"]).output();
        succeeded("python outside", &outside.expect("python"));
        let closed =
            home.run(caller, &[], "cd @/work && venv/bin/pip download -q --retries 0 --no-deps idna");
        assert!(!closed.status.success(), "{caller:?}");
    }
}

#[test]
fn node_fetches_from_its_registry() {
    hutch_testkit::require!(root, node);
    let Some(registry) = printed("npm", &["config", "get", "registry"]) else {
        return hutch_testkit::note_skip("fetch from the registry of npm", "needs npm");
    };
    let registry = registry.trim_end_matches('/');
    let script = format!(
        "node -e 'fetch(\"{registry}/is-number\").then((answer) => answer.json()).then(({{name}}) => console.log(name))'"
    );
    let hosts = host(registry).into_iter().collect();
    let Some(output) = run("fetch from the registry of npm", &hosts, &[], &script) else { return };
    assert_eq!(succeeded("node", &output).trim(), "is-number");
}

#[test]
fn go_downloads_from_its_proxy() {
    hutch_testkit::require!(root);
    let Some(proxies) = printed("go", &["env", "GOPROXY"]) else {
        return hutch_testkit::note_skip("go", "needs go");
    };
    let hosts = proxies.split([',', '|']).filter_map(host).collect();
    let script = "export GOPATH=/tmp/go GOFLAGS=-mod=mod GONOSUMDB='*' GOTOOLCHAIN=local; mkdir /tmp/m && cd /tmp/m\n\
        go mod init m 2>&- && go get golang.org/x/exp@v0.0.0-20240719175910-8a7402abbf56 2>&- && go list -m all | wc -l";
    let options = ["--tools", "--env", &format!("GOPROXY={proxies}")];
    let Some(output) = run("go", &hosts, &options, script) else { return };
    assert!(succeeded("go", &output).trim().parse::<usize>().is_ok_and(|modules| modules >= 2), "{output:?}");
}
