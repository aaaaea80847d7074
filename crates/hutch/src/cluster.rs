//! Configuration for the API server of a cluster.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, anyhow, bail};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Address of the API server, for errors.
static SERVER: OnceLock<String> = OnceLock::new();

/// Returns the configuration from the usual places of Kubernetes programs: the file of `--kubeconfig`, `KUBECONFIG`, the
/// ServiceAccount of this Pod, `~/.kube/config`.
pub(crate) async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let usual = KubeConfigOptions::default();
    let config = if let Some(file) = kubeconfig {
        let named = || format!("--kubeconfig={}", file.display());
        let kubeconfig = Kubeconfig::read_from(file).map_err(without_text).with_context(named)?;
        Config::from_custom_kubeconfig(kubeconfig, &usual).await.map_err(without_text).with_context(named)?
    } else if std::env::var_os("KUBECONFIG").is_some_and(|files| !files.is_empty()) {
        Config::from_kubeconfig(&usual).await.map_err(without_text).context("the kubeconfig in KUBECONFIG")?
    } else if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Config::incluster().context("the ServiceAccount of this Pod")?
    } else {
        let nothing = "no --kubeconfig, no KUBECONFIG, not in a Pod, and no ~/.kube/config to use";
        Config::from_kubeconfig(&usual).await.map_err(without_text).context(nothing)?
    };
    name_server(&config.cluster_url);
    if config.proxy_url.is_some() {
        // The URL may hold a password.
        bail!("proxy-url of the kubeconfig: a proxy is not supported; remove it");
    }
    Ok(config)
}

/// Stores the address of the API server for errors. A second connection of this process is to the same server.
pub(crate) fn name_server(url: &impl ToString) {
    let _ = SERVER.set(url.to_string());
}

/// Returns the address of the API server of this process.
pub(crate) fn server() -> Option<&'static str> {
    SERVER.get().map(String::as_str)
}

/// Returns the error; of malformed YAML only its place, because the lines that the library shows may hold a credential.
fn without_text(error: KubeconfigError) -> anyhow::Error {
    let error = match error {
        KubeconfigError::ReadConfig(cause, _) => return anyhow!("cannot read it: {cause}"),
        KubeconfigError::Parse(error) => error,
        // Its text holds its cause.
        other => return anyhow!("{other}"),
    };
    match error.location() {
        Some(place) => {
            anyhow!("line {}, column {}: this is not YAML of a kubeconfig", place.line(), place.column())
        }
        None => anyhow!("this is not YAML of a kubeconfig"),
    }
}

/// Parses any bytes. An error contains no part of them.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_kubeconfig(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(error) = Kubeconfig::from_yaml(text).map_err(without_text) {
        let said = error.to_string();
        let plain =
            said.trim_start_matches(|c: char| "line, colum:".contains(c) || c == ' ' || c.is_ascii_digit());
        assert!(plain.ends_with("this is not YAML of a kubeconfig") && said.len() < 100, "{said}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("hutch_kubeconfig", any_kubeconfig);
    }

    #[tokio::test]
    async fn error_in_a_kubeconfig_shows_no_secrets() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("kubeconfig");
        for (text, place) in [
            (
                "users:\n- name: a\n  user:\n    token: SECRET\n   client-key-data: SECRET\n",
                "line 5, column 4",
            ),
            ("users:\n- name: a\n  user: SECRET\n", "line 3, column 9"),
            ("SECRET", "line 1, column 1"),
        ] {
            std::fs::write(&file, text).expect("written");
            let error = format!("{:#}", config(Some(&file)).await.expect_err(text));
            assert!(error.contains(place) && !error.contains("SECRET"), "{error}");
        }
    }
}
