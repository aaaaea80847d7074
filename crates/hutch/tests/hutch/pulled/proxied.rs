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

#[test]
fn bars_show_a_pull_on_a_terminal() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl);
    let (registry, home) = (Registry::start(), Home::new());
    home.log_in(&registry.host, PASSWORD);
    let command = format!(
        "{} image pull {} --image-config {} --data-dir {}",
        binary(),
        registry.name(),
        registry.trusting(),
        home.lib().display()
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    let output = script.env("HOME", home.0.path()).env_remove("DOCKER_CONFIG").stdin(Stdio::null()).output();
    let shown = succeeded("script", &output.expect("script"));
    let full = format!("all layers   [{}]", "=".repeat(30));
    assert!(shown.contains(&full) && shown.contains(&registry.name()), "{shown}");
    let piped = home.hutch(&["image", "pull", &registry.name(), "--image-config", &registry.trusting()]);
    assert_eq!(text(&piped.stderr), "");
}
