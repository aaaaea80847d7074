//! The flags of `hutch controller`: those of `agent-sandbox-controller`, with its names, defaults and syntax.

mod check;
mod table;

use std::time::Duration;

use super::go::{self, Word};

pub(super) use check::is_on;
use check::{check, warnings};

/// What was asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// The text of `-h`.
    Help(String),
    /// The version.
    Version,
    /// To run, with these settings; the lines are warnings about them.
    Run(Box<Flags>, Vec<String>),
}

/// All flags that mean something here, in the order of their names in the documentation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Flags {
    pub(crate) version: bool,
    pub(crate) extensions: bool,
    pub(crate) leader_elect: bool,
    pub(crate) leader_election_namespace: String,
    pub(crate) cluster_domain: String,
    pub(crate) metrics_bind_address: String,
    pub(crate) health_probe_bind_address: String,
    pub(crate) webhook: WebhookFlags,
    pub(crate) sandbox_workers: i64,
    pub(crate) claim_workers: i64,
    pub(crate) pool_workers: i64,
    pub(crate) template_workers: i64,
    pub(crate) pool_batch: i64,
    pub(crate) replenish_delay: Duration,
    pub(crate) refill_rate: f64,
    pub(crate) readiness_grace: Duration,
    pub(crate) unschedulable_recheck: Duration,
    pub(crate) pool_eviction: bool,
    pub(crate) write_behind: Duration,
    pub(crate) cache_label_selectors: bool,
    pub(crate) disable_claim_events: bool,
    pub(crate) disable_claim_annotations: bool,
    pub(crate) qps: f64,
    pub(crate) burst: i64,
    pub(crate) api_connections: i64,
    pub(crate) separate_watch_connection: bool,
    pub(crate) tracing: bool,
    pub(crate) kubeconfig: String,
    /// Flags that were given and mean something to a Go program only.
    ignored: Vec<&'static str>,
}

/// The flags of the conversion webhook.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WebhookFlags {
    /// Whether it runs.
    pub(crate) enable: bool,
    /// Its TCP port.
    pub(crate) port: i64,
    /// Where its certificate lies.
    pub(crate) cert_dir: String,
    /// File of the certificate, in that folder.
    pub(crate) cert_name: String,
    /// File of the key, in that folder.
    pub(crate) key_name: String,
    /// The Service by which the API server reaches it.
    pub(crate) service_name: String,
    /// Namespace of that Service, and of the Secret with the certificates.
    pub(crate) namespace: String,
    /// Whether this process makes the certificates and writes their authority into the CRDs.
    pub(crate) manage_certs: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Flags {
            version: false,
            extensions: false,
            leader_elect: true,
            leader_election_namespace: String::new(),
            cluster_domain: "cluster.local".to_owned(),
            metrics_bind_address: ":8080".to_owned(),
            health_probe_bind_address: ":8081".to_owned(),
            webhook: WebhookFlags::default(),
            sandbox_workers: 100,
            claim_workers: 50,
            pool_workers: 1,
            template_workers: 1,
            pool_batch: 300,
            replenish_delay: Duration::ZERO,
            refill_rate: 0.0,
            readiness_grace: Duration::from_secs(300),
            unschedulable_recheck: Duration::from_secs(60),
            pool_eviction: true,
            write_behind: Duration::ZERO,
            cache_label_selectors: false,
            disable_claim_events: false,
            disable_claim_annotations: false,
            qps: -1.0,
            burst: 10,
            api_connections: 1,
            separate_watch_connection: false,
            tracing: false,
            kubeconfig: String::new(),
            ignored: Vec::new(),
        }
    }
}

impl Default for WebhookFlags {
    fn default() -> Self {
        WebhookFlags {
            enable: true,
            port: 9443,
            cert_dir: "/tmp/k8s-webhook-server/serving-certs".to_owned(),
            cert_name: "tls.crt".to_owned(),
            key_name: "tls.key".to_owned(),
            service_name: "agent-sandbox-webhook-service".to_owned(),
            namespace: "agent-sandbox-system".to_owned(),
            manage_certs: true,
        }
    }
}

/// Reads the words after `hutch controller`.
///
/// # Errors
/// One line that names the flag and says what would be right.
pub(crate) fn parse(words: &[String]) -> Result<Asked, String> {
    let mut flags = Flags::default();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (name, value) = match go::word(word) {
            Some(Word::Flag("h" | "help", _)) => return Ok(Asked::Help(table::help())),
            Some(Word::Flag(name, value)) => (name, value),
            Some(Word::End) => match words.next() {
                None => break,
                Some(other) => return Err(stray(other)),
            },
            Some(Word::Other(other)) => return Err(stray(other)),
            None => return Err(format!("{word}: not a flag; write --name or --name=value")),
        };
        let flag =
            table::find(name).ok_or_else(|| format!("--{name}: there is no such flag; -h lists them"))?;
        flag.set(&mut flags, value, &mut words)?;
    }
    if flags.version {
        return Ok(Asked::Version);
    }
    check(&flags)?;
    let said = warnings(&flags);
    Ok(Asked::Run(Box::new(flags), said))
}

fn stray(word: &str) -> String {
    format!("{word:?}: takes flags only; a value follows its flag as --name=value")
}

#[cfg(test)]
mod tests;
