//! The flags of `hutch controller`: those of `agent-sandbox-controller`, with its names, defaults and syntax.

mod check;
mod table;

use std::time::Duration;

use hutch_controller::Config;

use crate::go::{self, Word};

pub(super) use check::is_on;
use check::{check, warnings};

/// Values of the flags.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// The text of `-h`.
    Help(String),
    /// The version.
    Version,
    /// Run with these settings; the lines are warnings.
    Run(Box<Flags>, Vec<String>),
}

/// Flags with an effect, in the order of the documentation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Flags {
    pub(crate) version: bool,
    pub(crate) extensions: bool,
    pub(crate) leader_elect: bool,
    pub(crate) leader_election_namespace: String,
    pub(crate) cluster_domain: String,
    pub(crate) metrics_bind_address: String,
    pub(crate) health_probe_bind_address: String,
    /// The domain of its names is the one above, its port the one below.
    pub(crate) webhook: hutch_webhook::Settings,
    pub(crate) webhook_port: i64,
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
    pub(crate) egress_gateway: String,
    pub(crate) egress_gateway_token_key_file: String,
    pub(crate) egress_gateway_ca_file: String,
    pub(crate) kubeconfig: String,
    /// Given flags that have an effect only in a Go program.
    ignored: Vec<&'static str>,
}

impl Default for Flags {
    /// Returns the defaults; those of the controllers and of the webhook are defined there.
    fn default() -> Self {
        let (config, webhook) = (Config::default(), hutch_webhook::Settings::default());
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        Flags {
            version: false,
            extensions: false,
            leader_elect: true,
            leader_election_namespace: String::new(),
            cluster_domain: config.cluster_domain,
            metrics_bind_address: ":8080".to_owned(),
            health_probe_bind_address: ":8081".to_owned(),
            webhook_port: webhook.port.into(),
            webhook,
            sandbox_workers: whole(config.sandbox_workers),
            claim_workers: whole(config.claim_workers),
            pool_workers: whole(config.pool_workers),
            template_workers: whole(config.template_workers),
            pool_batch: whole(config.pool_batch),
            replenish_delay: config.replenish_delay,
            refill_rate: config.refill_rate,
            readiness_grace: config.readiness_grace,
            unschedulable_recheck: config.unschedulable_recheck,
            pool_eviction: config.pool_eviction,
            write_behind: config.write_behind,
            cache_label_selectors: config.watch_labelled_only,
            disable_claim_events: !config.claim_events,
            disable_claim_annotations: !config.claim_times,
            qps: -1.0,
            burst: 10,
            api_connections: 1,
            separate_watch_connection: false,
            tracing: false,
            egress_gateway: String::new(),
            egress_gateway_token_key_file: String::new(),
            egress_gateway_ca_file: String::new(),
            kubeconfig: String::new(),
            ignored: Vec::new(),
        }
    }
}

/// Parses the arguments of `hutch controller`.
///
/// # Errors
/// One line that names the flag and a valid value.
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
