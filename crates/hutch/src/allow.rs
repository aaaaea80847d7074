//! Values of `--allow` and `--allow-private`.

use hutch_egress::private_advice;
use hutch_policy::{
    Cidr, Destination, EgressRule, Forbidden, Host, HostPattern, PortRange, Protocol, check_address,
    opens_nothing,
};

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
    let range: Cidr = text.parse().map_err(|error| format!("{error}"))?;
    match opens_nothing(&range) {
        Some(why) => Err(format!("{range} opens nothing: {why}")),
        None => Ok(range),
    }
}

/// Name of the sandbox itself.
const LOCALHOST: &str = "localhost";

/// Returns true if `HOST[:PORT]` leads to the sandbox itself.
pub(crate) fn is_own(text: &str) -> bool {
    match example(text).map(|destination| destination.host) {
        Ok(Host::Name(name)) => name.as_str() == LOCALHOST,
        Ok(Host::Address(address)) => address.is_loopback() || address.is_unspecified(),
        Err(_) => false,
    }
}

/// Returns why `HOST[:PORT]` opens nothing although it is valid, if these ranges are the private ones that are open.
pub(crate) fn without_effect(text: &str, ranges: &[Cidr]) -> Option<String> {
    let destination = example(text).ok()?;
    let own = "inside, it is the sandbox itself; a server of this machine needs another name or address of the machine, \
               with --allow-private";
    if is_own(text) {
        return Some(own.to_owned());
    }
    let Host::Address(address) = destination.host else { return None };
    let closed = check_address(address, ranges, &[]).err()?;
    Some(match closed {
        Forbidden::Metadata | Forbidden::NoHost => closed.to_string(),
        _ => format!("{closed}{}", private_advice(address)),
    })
}

#[cfg(test)]
mod tests {
    use hutch_egress::advice;

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

    #[test]
    fn host_that_no_rule_opens_is_named_with_the_way_out() {
        let ranges: [Cidr; 1] = ["10.0.0.0/8".parse().unwrap()];
        for (text, expected) in [
            ("localhost:8080", Some("the sandbox itself")),
            ("127.0.0.1", Some("the sandbox itself")),
            ("[::1]:80", Some("the sandbox itself")),
            ("0.0.0.0", Some("the sandbox itself")),
            ("192.168.1.2:22", Some("; --allow-private 192.168.1.2 opens it")),
            ("[fd12::1]:22", Some("; --allow-private fd12::1 opens it")),
            ("169.254.169.254:80", Some("which no rule opens")),
            ("10.1.2.3", None),
            ("8.8.8.8", None),
            ("example.com", None),
            ("*.example.com", None),
        ] {
            let found = without_effect(text, &ranges);
            assert_eq!(found.is_some(), expected.is_some(), "{text}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{text}");
        }
        assert!(private("169.254.169.254").unwrap_err().contains("opens nothing"));
        assert!(private("127.0.0.1").is_ok() && private("0.0.0.0/0").is_ok());
        for (destination, expected) in [
            ("a.example:443", "; --allow a.example:443 allows it"),
            ("8.8.8.8:53", "; --allow 8.8.8.8:53 allows it"),
            ("10.1.2.3:22", "; --allow 10.1.2.3:22 with --allow-private 10.1.2.3 allows it"),
        ] {
            assert_eq!(advice(destination), expected);
        }
        assert!(advice("169.254.169.254:80").ends_with("which no rule opens"));
    }
}
