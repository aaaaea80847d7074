//! How programs find the API server of a cluster.

use std::path::Path;

use anyhow::{Context, bail};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// As programs of Kubernetes do: the file of `--kubeconfig`, `KUBECONFIG`, the ServiceAccount of this Pod,
/// `~/.kube/config`.
pub(crate) async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let usual = KubeConfigOptions::default();
    let config = if let Some(file) = kubeconfig {
        let named = || format!("--kubeconfig={}", file.display());
        let kubeconfig = Kubeconfig::read_from(file).with_context(named)?;
        Config::from_custom_kubeconfig(kubeconfig, &usual).await.with_context(named)?
    } else if std::env::var_os("KUBECONFIG").is_some_and(|files| !files.is_empty()) {
        Config::from_kubeconfig(&usual).await.context("the kubeconfig in KUBECONFIG")?
    } else if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Config::incluster().context("the ServiceAccount of this Pod")?
    } else {
        let nothing = "no --kubeconfig, no KUBECONFIG, not in a Pod, and no ~/.kube/config to use";
        Config::from_kubeconfig(&usual).await.context(nothing)?
    };
    if let Some(proxy) = &config.proxy_url {
        bail!("proxy-url {proxy} of the kubeconfig: a proxy is not supported; remove it");
    }
    Ok(config)
}
