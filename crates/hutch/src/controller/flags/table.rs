//! Table of the flags of `hutch controller`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::Flags;
use crate::go;

type Field<T> = fn(&mut Flags) -> &mut T;

/// Type of a flag and the field that it sets.
enum Kind {
    Switch(Field<bool>),
    Whole(Field<i64>),
    Number(Field<f64>),
    Time(Field<Duration>),
    Text(Field<String>),
    Folder(Field<PathBuf>),
    /// Accepted and ignored, with a warning.
    OfGo,
    /// Accepted and ignored, as a switch.
    SwitchOfGo,
}

pub(super) struct Flag {
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

const fn row(name: &'static str, kind: Kind, help: &'static str) -> Flag {
    Flag { name, kind, help }
}

use Kind::{Folder, Number, OfGo, Switch, SwitchOfGo, Text, Time, Whole};

#[rustfmt::skip]
static FLAGS: [Flag; 47] = [
    row("version", Switch(|f| &mut f.version), "print the version and exit"),
    row("extensions", Switch(|f| &mut f.extensions), "reconcile claims, templates and pools too"),
    row("leader-elect", Switch(|f| &mut f.leader_elect), "work only while holding the lease a3317529.agent-sandbox.x-k8s.io"),
    row("leader-election-namespace", Text(|f| &mut f.leader_election_namespace), "namespace of the lease; empty: that of this Pod"),
    row("cluster-domain", Text(|f| &mut f.cluster_domain), "end of the DNS names of Services"),
    row("metrics-bind-address", Text(|f| &mut f.metrics_bind_address), "address for /metrics; 0 disables it"),
    row("health-probe-bind-address", Text(|f| &mut f.health_probe_bind_address), "address for /healthz and /readyz; 0 disables it"),
    row("enable-webhook", Switch(|f| &mut f.webhook.enabled), "convert between the API versions for the API server"),
    row("webhook-port", Whole(|f| &mut f.webhook_port), "port of the webhook"),
    row("webhook-cert-dir", Folder(|f| &mut f.webhook.cert_dir), "folder of the webhook's certificate"),
    row("webhook-cert-name", Text(|f| &mut f.webhook.cert_name), "file of the certificate; used with --manage-webhook-certs=false"),
    row("webhook-key-name", Text(|f| &mut f.webhook.key_name), "file of the key; used with --manage-webhook-certs=false"),
    row("webhook-service-name", Text(|f| &mut f.webhook.service_name), "Service of the webhook"),
    row("webhook-namespace", Text(|f| &mut f.webhook.namespace), "namespace of that Service"),
    row("manage-webhook-certs", Switch(|f| &mut f.webhook.manage_certs), "make the certificates and write their authority into the CRDs"),
    row("sandbox-concurrent-workers", Whole(|f| &mut f.sandbox_workers), "maximum number of concurrent Sandbox reconciles"),
    row("sandbox-claim-concurrent-workers", Whole(|f| &mut f.claim_workers), "maximum number of concurrent claim reconciles"),
    row("sandbox-warm-pool-concurrent-workers", Whole(|f| &mut f.pool_workers), "maximum number of concurrent pool reconciles"),
    row("sandbox-template-concurrent-workers", Whole(|f| &mut f.template_workers), "maximum number of concurrent template reconciles"),
    row("sandbox-warm-pool-max-batch-size", Whole(|f| &mut f.pool_batch), "maximum number of pooled Sandboxes created or deleted in one reconcile"),
    row("sandbox-warm-pool-replenish-delay", Time(|f| &mut f.replenish_delay), "delay before a pool replaces lost Sandboxes"),
    row("sandbox-warm-pool-max-refill-rate", Number(|f| &mut f.refill_rate), "maximum number of Sandboxes that a pool creates per second; 0: no limit"),
    row("sandbox-warm-pool-readiness-grace-period", Time(|f| &mut f.readiness_grace), "maximum time for a pooled Sandbox to become Ready before it is replaced"),
    row("sandbox-warm-pool-unschedulable-recheck-interval", Time(|f| &mut f.unschedulable_recheck), "requeue interval of a pool with unschedulable Sandboxes"),
    row("enable-warm-pool-eviction", Switch(|f| &mut f.pool_eviction), "mark pooled Pods as safe to evict"),
    row("sandbox-write-behind-window", Time(|f| &mut f.write_behind), "how long a change of a Pod's labels and annotations alone may wait"),
    row("cache-label-selectors", Switch(|f| &mut f.cache_label_selectors), "watch only Pods and Services with the label of a Sandbox"),
    row("disable-claim-events", Switch(|f| &mut f.disable_claim_events), "write no events about claims"),
    row("disable-claim-observability-annotations", Switch(|f| &mut f.disable_claim_annotations), "write no times and no trace onto claims"),
    row("kube-api-qps", Number(|f| &mut f.qps), "requests a second to the API server; not above 0: no limit"),
    row("kube-api-burst", Whole(|f| &mut f.burst), "requests at once before that limit counts"),
    row("api-connections", Whole(|f| &mut f.api_connections), "HTTP/2 connections to the API server, used in turn"),
    row("separate-watch-connection", Switch(|f| &mut f.separate_watch_connection), "a connection of their own for watches"),
    row("enable-tracing", Switch(|f| &mut f.tracing), "send traces by OTLP/gRPC, as the OTEL_* variables say"),
    row("egress-gateway", Text(|f| &mut f.egress_gateway), "http://SERVICE.NAMESPACE:PORT or http://ADDRESS:PORT of `hutch egress --cluster`; Sandboxes reach only that"),
    row("egress-gateway-token-key-file", Text(|f| &mut f.egress_gateway_token_key_file), "file with the key of the Sandboxes' tokens for the gateway, 32 bytes at least"),
    row("egress-gateway-ca-file", Text(|f| &mut f.egress_gateway_ca_file), "file with the certificate of the gateway's authority, which Pods then trust beside those that SSL_CERT_FILE names"),
    row("kubeconfig", Text(|f| &mut f.kubeconfig), "kubeconfig file; empty: KUBECONFIG, else that of the cluster's Pods, else ~/.kube/config"),
    row("enable-pprof", SwitchOfGo, "accepted for compatibility, no effect"),
    row("enable-pprof-debug", SwitchOfGo, "accepted for compatibility, no effect"),
    row("pprof-block-profile-rate", OfGo, "accepted for compatibility, no effect"),
    row("pprof-mutex-profile-fraction", OfGo, "accepted for compatibility, no effect"),
    row("zap-devel", SwitchOfGo, "accepted for compatibility, no effect; HUTCH_LOG sets what is logged"),
    row("zap-encoder", OfGo, "accepted for compatibility, no effect"),
    row("zap-log-level", OfGo, "accepted for compatibility, no effect; HUTCH_LOG sets what is logged"),
    row("zap-stacktrace-level", OfGo, "accepted for compatibility, no effect"),
    row("zap-time-encoding", OfGo, "accepted for compatibility, no effect"),
];

pub(super) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

impl Flag {
    /// Reads the value after the `=`; without one, the next word, unless the flag is a switch.
    pub(super) fn set<'a>(
        &self,
        flags: &mut Flags,
        value: Option<&'a str>,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), String> {
        let name = self.name;
        let switch = matches!(self.kind, Switch(_) | SwitchOfGo);
        let value = match value {
            Some(value) => value,
            None if switch => "true",
            None => words.next().ok_or_else(|| format!("--{name}: needs a value: {}", self.wanted()))?,
        };
        self.take(flags, value).ok_or_else(|| format!("--{name}={value}: must be {}", self.wanted()))
    }

    fn take(&self, flags: &mut Flags, value: &str) -> Option<()> {
        match &self.kind {
            Switch(field) => *field(flags) = go::boolean(value)?,
            Whole(field) => *field(flags) = go::integer(value)?,
            Number(field) => *field(flags) = go::float(value)?,
            Time(field) => *field(flags) = go::duration(value)?,
            Text(field) => value.clone_into(field(flags)),
            Folder(field) => *field(flags) = value.into(),
            OfGo => flags.ignored.push(self.name),
            SwitchOfGo => {
                go::boolean(value)?;
                flags.ignored.push(self.name);
            }
        }
        Some(())
    }

    fn wanted(&self) -> &'static str {
        match self.kind {
            Switch(_) | SwitchOfGo => "true or false",
            Whole(_) => "a whole number",
            Number(_) => "a number",
            Time(_) => "a duration of at least 0, such as 5m, 90s or 250ms",
            Text(_) | Folder(_) | OfGo => "text",
        }
    }
}

/// Returns the help text, a line for each flag.
pub(super) fn help() -> String {
    let mut text = "Usage: hutch controller [FLAGS]\n\nReconciles Sandboxes, and with --extensions claims, templates and pools, on a \
                    cluster.\n\nFlags, as Go programs take them (-x, --x, --x=value):\n\n"
        .to_owned();
    let mut defaults = Flags::default();
    for flag in &FLAGS {
        let default = match &flag.kind {
            Switch(field) => field(&mut defaults).to_string(),
            Whole(field) => field(&mut defaults).to_string(),
            Number(field) => field(&mut defaults).to_string(),
            Time(field) => format!("{:?}", field(&mut defaults)),
            Text(field) => format!("{:?}", field(&mut defaults)),
            Folder(field) => format!("{:?}", field(&mut defaults)),
            OfGo | SwitchOfGo => String::new(),
        };
        let default = if default.is_empty() { default } else { format!(" (default {default})") };
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  --{}\n        {}{default}", flag.name, flag.help);
    }
    text
}

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|flag| flag.name)
}
