//! Checks of flags beyond their syntax, and warnings.

use super::Flags;

/// Number of workers above which there is a warning.
const MANY_WORKERS: i64 = 1000;

/// Returns the first mistake, in one line.
pub(crate) fn check(flags: &Flags) -> Result<(), String> {
    let counts = [
        ("sandbox-concurrent-workers", flags.sandbox_workers),
        ("sandbox-claim-concurrent-workers", flags.claim_workers),
        ("sandbox-warm-pool-concurrent-workers", flags.pool_workers),
        ("sandbox-warm-pool-max-batch-size", flags.pool_batch),
        ("kube-api-burst", flags.burst),
        ("api-connections", flags.api_connections),
    ];
    for (name, value) in counts {
        if value < 1 {
            return Err(format!("--{name}={value}: must be greater than 0"));
        }
    }
    let times = [
        ("sandbox-warm-pool-readiness-grace-period", flags.readiness_grace),
        ("sandbox-warm-pool-unschedulable-recheck-interval", flags.unschedulable_recheck),
    ];
    for (name, value) in times {
        if value.is_zero() {
            return Err(format!("--{name}=0: must be greater than 0, such as 5m"));
        }
    }
    let rate = flags.refill_rate;
    if !rate.is_finite() || rate < 0.0 {
        return Err(format!(
            "--sandbox-warm-pool-max-refill-rate={rate}: must be finite and at least 0 (0: no limit)"
        ));
    }
    if flags.qps.is_nan() {
        return Err("--kube-api-qps=NaN: must be a number (not above 0: no limit)".to_owned());
    }
    if flags.cluster_domain.trim().is_empty() {
        return Err("--cluster-domain: must not be empty, such as cluster.local".to_owned());
    }
    if flags.egress_gateway.is_empty() != flags.egress_gateway_token_key_file.is_empty() {
        let line = "--egress-gateway and --egress-gateway-token-key-file: set both, or neither";
        return Err(line.to_owned());
    }
    if flags.egress_gateway.is_empty() && !flags.egress_gateway_ca_file.is_empty() {
        return Err("--egress-gateway-ca-file: needs --egress-gateway".to_owned());
    }
    check_webhook(flags)?;
    check_addresses(flags)
}

fn check_webhook(flags: &Flags) -> Result<(), String> {
    let webhook = &flags.webhook;
    for (name, value) in [("webhook-cert-name", &webhook.cert_name), ("webhook-key-name", &webhook.key_name)]
    {
        if value.trim().is_empty() {
            return Err(format!("--{name}: must not be empty, such as tls.crt"));
        }
    }
    if webhook.enabled && u16::try_from(flags.webhook_port).is_err() {
        return Err(format!(
            "--webhook-port={}: must be a port, 0 to 65535 (0: any that is free)",
            flags.webhook_port
        ));
    }
    Ok(())
}

/// Checks that no two servers have the same port.
fn check_addresses(flags: &Flags) -> Result<(), String> {
    let webhook = flags.webhook.enabled.then(|| format!(":{}", flags.webhook_port));
    let addresses = [
        ("metrics-bind-address", Some(&flags.metrics_bind_address)),
        ("health-probe-bind-address", Some(&flags.health_probe_bind_address)),
        ("webhook-port", webhook.as_ref()),
    ];
    let mut ports: Vec<(&str, &str)> = Vec::new();
    for (name, address) in addresses {
        let Some(address) = address.filter(|address| is_on(address)) else { continue };
        let port = address.rsplit_once(':').map(|(_, port)| port);
        let Some(port) = port.filter(|port| port.parse::<u16>().is_ok()) else {
            return Err(format!("--{name}={address}: must be HOST:PORT or :PORT, or 0 for none"));
        };
        if port != "0"
            && let Some((other, _)) = ports.iter().find(|(_, taken)| *taken == port)
        {
            return Err(format!("--{name}: port {port} is that of --{other}; each needs its own"));
        }
        ports.push((name, port));
    }
    Ok(())
}

/// Returns true if the address enables a server.
pub(crate) fn is_on(address: &str) -> bool {
    !address.is_empty() && address != "0"
}

/// Returns warnings about valid settings that are probably mistakes.
pub(crate) fn warnings(flags: &Flags) -> Vec<String> {
    let mut lines = Vec::new();
    if !flags.ignored.is_empty() {
        let names: Vec<String> = flags.ignored.iter().map(|name| format!("--{name}")).collect();
        lines.push(format!("{}: for a Go program only, without effect here", names.join(", ")));
    }
    let workers = flags.sandbox_workers + flags.claim_workers + flags.pool_workers + flags.template_workers;
    if workers > MANY_WORKERS {
        lines.push(format!(
            "{workers} workers in all, more than {MANY_WORKERS}, cost the API server more than they give"
        ));
    }
    if flags.qps > 0.0 && workers > flags.burst {
        lines.push(format!(
            "{workers} workers in all, more than --kube-api-burst={}, will wait for each other",
            flags.burst
        ));
    }
    let defaults = hutch_webhook::Settings::default();
    let webhook = &flags.webhook;
    if webhook.manage_certs
        && (webhook.cert_name != defaults.cert_name || webhook.key_name != defaults.key_name)
    {
        lines.push(
            "--webhook-cert-name and --webhook-key-name are without effect with --manage-webhook-certs"
                .to_owned(),
        );
    }
    lines
}
