//! Pulls through the proxy of the environment.

use super::*;
use crate::doors::origin::upstream_proxy;

/// Port of a host.
fn port(host: &str) -> &str {
    host.rsplit_once(':').expect("a port").1
}

#[test]
fn pull_goes_through_the_proxy_of_the_environment() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl);
    let (registry, mut home) = (Registry::start(), Home::new());
    let (proxy, heads) = upstream_proxy("127.0.0.1");
    // Only the proxy can find this host.
    let host = format!("registry.example:{}", port(&registry.host));
    let name = format!("{host}/org/app:v1");
    home.log_in(&host, PASSWORD);
    let config = registry.trusting();
    let pull = ["image", "pull", &name, "--image-config", &config];
    let url = format!("http://user:p%40ss@{proxy}");
    home.set("HTTPS_PROXY", &url);
    succeeded("pull", &home.hutch(&pull));
    let head = heads.try_recv().expect("a CONNECT");
    assert!(head.starts_with(&format!("CONNECT {host} HTTP/1.1\r\n")), "{head}");
    assert!(head.to_lowercase().contains("proxy-authorization: basic dxnlcjpwqhnz"), "{head}");

    while heads.try_recv().is_ok() {}
    home.set("NO_PROXY", "registry.example");
    failed(&home.hutch(&pull), "registry.example");
    // As Docker does, hosts of this machine are reached without it.
    home.log_in(&registry.host, PASSWORD);
    home.set("NO_PROXY", "");
    let local = registry.name();
    succeeded("pull", &home.hutch(&["image", "pull", &local, "--image-config", &config]));
    assert!(heads.try_recv().is_err());
    home.set("HTTPS_PROXY", "socks5://user:secret@proxy.example");
    let refused = home.hutch(&pull);
    failed(&refused, "HTTPS_PROXY: must be like http://");
    assert!(!text(&refused.stderr).contains("secret"));
}

#[test]
fn pull_for_a_pod_goes_through_the_proxy_of_the_server() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, kubectl);
    let registry = Registry::start();
    let (proxy, heads) = upstream_proxy("127.0.0.1");
    let host = format!("registry.example:{}", port(&registry.host));
    let (config, url) = (registry.trusting(), format!("http://{proxy}"));
    let options = ["--pull-from", &host, "--image-config", &config];
    let variables = [("HTTPS_PROXY", Path::new(&url))];
    let up = Up::start_outside("127.0.0.1 localhost\n", &variables, &options);
    up.ok(&format!(
        "create secret docker-registry login --docker-server={host} --docker-username={USER} --docker-password={PASSWORD}"
    ));
    let with_secret = json!({"imagePullSecrets": [{"name": "login"}]});
    apply(&up, "default", &pod("first", &format!("{host}/org/app:v1"), &with_secret));
    up.ok("wait --for=condition=Ready pod/first --timeout=120s");
    assert!(heads.try_recv().expect("a CONNECT").starts_with(&format!("CONNECT {host} ")));
}

/// Returns what a command of `hutch image` shows on a terminal.
fn shown(home: &Home, words: &[&str]) -> String {
    let command = format!("{} image {} --data-dir {}", binary(), words.join(" "), home.lib().display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    let output = script.env("HOME", home.0.path()).env_remove("DOCKER_CONFIG").stdin(Stdio::null()).output();
    succeeded("script", &output.expect("script"))
}

/// A full bar.
fn full(title: &str) -> String {
    format!("{title:<12} [{}]", "=".repeat(30))
}

#[test]
fn bars_show_a_pull_on_a_terminal() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl);
    let (registry, home) = (Registry::start(), Home::new());
    home.log_in(&registry.host, PASSWORD);
    let (name, config) = (registry.name(), registry.trusting());
    let printed = shown(&home, &["pull", &name, "--image-config", &config]);
    assert!(printed.contains(&full("all layers")) && printed.contains(&name), "{printed}");
    let piped = home.hutch(&["image", "pull", &name, "--image-config", &config]);
    assert_eq!(text(&piped.stderr), "");
}

#[test]
fn bars_show_an_export_and_an_import_on_a_terminal() {
    hutch_testkit::require!(root, user_namespaces);
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("tempdir"));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let saved = imported::save(folder.path()).display().to_string();
    assert!(shown(&home, &["import", &saved]).contains(&full("import")));
    assert!(shown(&home, &["export", "org/app:v1", &at("out.tar")]).contains(&full("export")));
    std::fs::create_dir(at("layout")).expect("made");
    let unpacked = Command::new("tar").args(["-xf", &at("out.tar"), "-C", &at("layout")]).output();
    succeeded("tar", &unpacked.expect("tar"));
    assert!(shown(&home, &["import", &at("layout"), "again:v1"]).contains(&full("import")));
    for words in [&["import", &saved][..], &["export", "org/app:v1", &at("other.tar")]] {
        let piped = home.hutch(&[&["image"], words].concat());
        assert!(piped.status.success() && piped.stderr.is_empty(), "{words:?}: {}", text(&piped.stderr));
    }
}
