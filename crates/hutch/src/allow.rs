//! Values of `--allow` and `--allow-private`.

use hutch_policy::{Cidr, Destination, EgressRule, Host, HostPattern, PortRange, Protocol};

/// Port of HTTPS, where TLS is spoken.
const HTTPS: u16 = 443;
/// Port of HTTP, where that is spoken too.
const HTTP: u16 = 80;

/// Checks `HOST[:PORT]`.
pub(crate) fn host(text: &str) -> Result<String, String> {
    rule(text).map(|rule| rule.name)
}

/// Returns a destination that `HOST[:PORT]` covers.
pub(crate) fn example(text: &str) -> Result<Destination, String> {
    // A pattern is a name but for its first label.
    text.replace('*', "x").parse().map_err(|error| format!("{error}"))
}

/// Parses `HOST[:PORT]` of `--allow`.
pub(crate) fn rule(text: &str) -> Result<EgressRule, String> {
    let mut rule = EgressRule { name: text.to_owned(), ..EgressRule::default() };
    let pattern = text.contains('*').then_some(text);
    let destination = example(text)?;
    match (pattern, destination.host) {
        (Some(pattern), _) => {
            let pattern = pattern.rsplit_once(':').map_or(pattern, |(host, _)| host);
            rule.hosts.push(pattern.parse().map_err(|error| format!("{error}"))?);
        }
        (None, Host::Name(name)) => rule.hosts.push(HostPattern::Exact(name)),
        (None, Host::Address(address)) => {
            rule.cidrs.push(address.to_string().parse().map_err(|error| format!("{error}"))?)
        }
    }
    match destination.port.get() {
        HTTPS => {}
        HTTP => rule.plaintext = true,
        _ => rule.protocol = Protocol::Tcp,
    }
    rule.ports.push(PortRange::one(destination.port));
    Ok(rule)
}

/// Parses a range of `--allow-private`.
pub(crate) fn private(text: &str) -> Result<Cidr, String> {
    text.parse().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_and_without_ports_are_rules() {
        let json = |text: &str| serde_json::to_value(rule(text).unwrap()).unwrap();
        for (text, field, host, port, protocol) in [
            ("example.com", "hosts", "example.com", 443, "Auto"),
            ("Example.com.:80", "hosts", "example.com", 80, "Auto"),
            ("*.example.com", "hosts", "*.example.com", 443, "Auto"),
            ("**.example.com:5432", "hosts", "**.example.com", 5432, "TCP"),
            ("192.0.2.1", "cidrs", "192.0.2.1/32", 443, "Auto"),
            ("[2001:db8::1]:22", "cidrs", "2001:db8::1/128", 22, "TCP"),
        ] {
            let rule = json(text);
            assert_eq!((&rule[field][0], &rule["ports"][0]), (&host.into(), &port.into()), "{text}");
            assert_eq!(rule.get("protocol").map_or("Auto", |it| it.as_str().unwrap()), protocol, "{text}");
        }
        for wrong in ["", "*", "*.com", "a b", "example.com:0", "example.com:x", "https://example.com", "a/b"]
        {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
    }
}
