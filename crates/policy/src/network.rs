//! The level that the `networkPolicy` of a template is.
//!
//! It decides about addresses: those to which programs connect without a name, and those to which a name leads. It opens
//! no name by itself: other levels do. Peers by labels open nothing here, and only TCP is open at all.

use std::sync::Arc;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::address::PRIVATE;
use crate::attach::{SandboxTarget, Selector};
use crate::cidr::Cidr;
use crate::decide::{Authority, Level, NETWORK_POLICY};
use crate::egress::Egress;
use crate::ports::PortRange;
use crate::rule::{EgressRule, Protocol};

/// Maximum ranges of addresses after the exceptions are taken away. A policy with more opens nothing.
const RANGES: usize = 1024;
/// Every address.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The level that the `networkPolicy` of a template is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkLevel {
    /// If no other level opens the network.
    pub(crate) alone: Arc<Level>,
    /// Beside others: it abstains about other sandboxes, and about a name until its address is known.
    pub(crate) beside: Arc<Level>,
}

/// Egress rules of a NetworkPolicy.
#[derive(Default, Deserialize)]
struct Rules {
    #[serde(default)]
    egress: Option<Vec<Rule>>,
}

#[derive(Default, Deserialize)]
struct Rule {
    to: Option<Vec<To>>,
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct To {
    ip_block: Option<Block>,
}

#[derive(Deserialize)]
struct Block {
    cidr: String,
    except: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    port: Option<Value>,
    end_port: Option<u16>,
    protocol: Option<String>,
}

impl NetworkLevel {
    /// Reads the `networkPolicy` in the spec of a template; `None` if it has none, or manages none. One that cannot be read
    /// opens nothing.
    pub fn read(template: &str, spec: &Value) -> Option<NetworkLevel> {
        let rules = spec.get("networkPolicy").filter(|rules| !rules.is_null())?;
        if spec.get("networkPolicyManagement").is_some_and(|management| management == "Unmanaged") {
            return None;
        }
        let rules: Rules = serde_json::from_value(rules.clone()).unwrap_or_default();
        let rules: Vec<EgressRule> =
            rules.egress.iter().flatten().enumerate().filter_map(|(index, rule)| rule.read(index)).collect();
        let number: usize = rules.iter().map(|rule| rule.cidrs.len()).sum();
        let rules = if number > RANGES { Vec::new() } else { rules };
        let level = |rules: Vec<EgressRule>| {
            Arc::new(Level::new(
                Authority::Template,
                format!("{NETWORK_POLICY}{template}"),
                Some(Egress { rules: rules.into(), ..Egress::default() }),
            ))
        };
        Some(NetworkLevel { alone: level(rules.clone()), beside: level([rules, abstaining()].concat()) })
    }
}

/// Rules that allow everything but addresses: other levels decide about it. [`crate::may_dial`] compares the addresses to
/// which names lead.
fn abstaining() -> Vec<EgressRule> {
    let every = Some(Selector::default());
    let sandboxes = SandboxTarget { name: None, selector: every.clone(), namespace_selector: every };
    let own = SandboxTarget { namespace_selector: None, ..sandboxes.clone() };
    vec![
        EgressRule {
            name: "names".to_owned(),
            any: true,
            ports: vec![PortRange::ALL],
            protocol: Protocol::Tcp,
            private: ALL.iter().filter_map(|range| range.parse().ok()).collect(),
            ..EgressRule::default()
        },
        EgressRule {
            name: "sandboxes".to_owned(),
            sandboxes: vec![own, sandboxes],
            ports: vec![PortRange::ALL],
            ..EgressRule::default()
        },
    ]
}

impl Rule {
    fn read(&self, index: usize) -> Option<EgressRule> {
        let ports: Vec<PortRange> = match self.ports.as_deref() {
            None | Some([]) => vec![PortRange::ALL],
            Some(ports) => ports.iter().filter_map(Port::read).collect(),
        };
        let blocks: Vec<Open> = match self.to.as_deref() {
            None | Some([]) => {
                let all = ALL.iter().filter_map(|range| range.parse().ok());
                all.map(|range| Open { range, private: false }).collect()
            }
            Some(to) => to.iter().filter_map(|to| to.ip_block.as_ref()).flat_map(Block::read).collect(),
        };
        if ports.is_empty() || blocks.is_empty() {
            return None;
        }
        let private =
            blocks.iter().filter(|block| block.private).filter_map(|block| cidr(&block.range)).collect();
        Some(EgressRule {
            name: format!("egress[{index}]"),
            cidrs: blocks.iter().filter_map(|block| cidr(&block.range)).collect(),
            ports,
            protocol: Protocol::Tcp,
            private,
            ..EgressRule::default()
        })
    }
}

impl Port {
    fn read(&self) -> Option<PortRange> {
        if self.protocol.as_deref().is_some_and(|protocol| protocol != "TCP") {
            return None;
        }
        // A name means a port of the Pods that are selected, which open nothing here.
        let Some(port) = &self.port else { return Some(PortRange::ALL) };
        let first = u16::try_from(port.as_u64()?).ok()?;
        PortRange::new(first, self.end_port.unwrap_or(first))
    }
}

/// A range that is open.
struct Open {
    range: IpNet,
    /// The block to which it belongs names a private network. A part that is left of a wider one does not.
    private: bool,
}

impl Block {
    /// Returns the block without its exceptions. One with an exception that cannot be read is empty.
    fn read(&self) -> Vec<Open> {
        let Ok(block) = self.cidr.parse::<IpNet>() else { return Vec::new() };
        let except = self.except.iter().flatten().map(|text| text.parse());
        let Ok(except) = except.collect::<Result<Vec<IpNet>, _>>() else { return Vec::new() };
        let mut left = Vec::new();
        take_away(block.trunc(), &except, &mut left);
        let private = is_private(&block);
        left.into_iter().map(|range| Open { range, private }).collect()
    }
}

fn take_away(block: IpNet, except: &[IpNet], left: &mut Vec<IpNet>) {
    if except.iter().any(|range| range.contains(&block)) || left.len() > RANGES {
        return;
    }
    let inside: Vec<IpNet> = except.iter().copied().filter(|range| block.contains(range)).collect();
    if inside.is_empty() {
        return left.push(block);
    }
    for half in block.subnets(block.prefix_len() + 1).into_iter().flatten() {
        take_away(half, &inside, left);
    }
}

fn cidr(block: &IpNet) -> Option<Cidr> {
    block.to_string().parse().ok()
}

fn is_private(block: &IpNet) -> bool {
    PRIVATE.iter().filter_map(|range| range.parse::<IpNet>().ok()).any(|range| range.contains(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Forbidden;
    use crate::decide::{decide, may_dial, may_resolve};
    use crate::destination::Decision;
    use crate::expression::Moment;

    fn network(egress: Value) -> NetworkLevel {
        NetworkLevel::read("t", &serde_json::json!({ "networkPolicy": {"egress": egress} })).unwrap()
    }

    fn decided(levels: &[Arc<Level>], destination: &str) -> Decision {
        decide(levels, &destination.parse().unwrap(), &Moment::default()).decision
    }

    #[test]
    fn blocks_without_their_exceptions_are_open() {
        use Decision::{Allow, Deny};
        let found = network(serde_json::json!([
            {"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.3.4/32"]}}],
             "ports": [{"port": 5432}, {"port": 8000, "endPort": 8010}, {"port": 53, "protocol": "UDP"}, {"port": "web"}]},
            {"to": [{"podSelector": {}}, {"ipBlock": {"cidr": "192.0.2.0/24"}}]},
        ]));
        let alone = [found.alone];
        for (destination, decision) in [
            ("10.0.0.1:5432", Allow),
            ("10.0.0.1:8005", Allow),
            ("10.0.0.1:53", Deny),
            ("10.1.2.3:5432", Deny),
            ("10.2.3.4:5432", Deny),
            ("10.2.3.5:5432", Allow),
            ("192.0.2.9:1", Allow),
            ("198.51.100.1:443", Deny),
            ("a.example:443", Deny),
        ] {
            assert_eq!(decided(&alone, destination), decision, "{destination}");
        }
        assert!(!may_resolve(&alone, &"a.example".parse().unwrap()));
        let dial = |destination: &str| {
            let destination: crate::Destination = destination.parse().unwrap();
            let crate::Host::Address(address) = destination.host else { unreachable!() };
            may_dial(&alone, &destination, address, &[], &Moment::default())
        };
        assert!(dial("10.0.0.1:5432").is_ok(), "named and private");
        let all = network(serde_json::json!([{}]));
        let all = [all.alone];
        assert_eq!(decided(&all, "10.0.0.1:443"), Allow);
        let private = "10.0.0.1:443".parse().unwrap();
        assert!(may_dial(&all, &private, "10.0.0.1".parse().unwrap(), &[], &Moment::default()).is_err());
        // Found by review: what is left of a wide block beside an exception was private then, and so open.
        let rest = network(
            serde_json::json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.0.0/16"]}}]}]),
        );
        assert!(
            may_dial(&[rest.alone], &private, "10.0.0.1".parse().unwrap(), &[], &Moment::default()).is_err()
        );
        let metadata = network(serde_json::json!([{"to": [{"ipBlock": {"cidr": "169.254.0.0/16"}}]}]));
        let service = "169.254.169.254:80".parse().unwrap();
        let address = "169.254.169.254".parse().unwrap();
        assert!(may_dial(&[metadata.alone], &service, address, &[], &Moment::default()).is_err());
    }

    #[test]
    fn it_only_takes_addresses_away_from_others() {
        use Decision::{Allow, Deny};
        let found = network(serde_json::json!([{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]));
        let rules = serde_json::json!({"rules": [
            {"name": "a", "hosts": ["a.example"], "cidrs": ["0.0.0.0/0"], "private": ["10.0.0.0/8"]},
        ]});
        let other = Level::new(Authority::Cluster, "c", Some(serde_json::from_value(rules).unwrap()));
        let both = [found.beside, Arc::new(other)];
        assert_eq!(decided(&both, "a.example:443"), Allow);
        assert_eq!(decided(&both, "b.example:443"), Deny);
        assert_eq!(decided(&both, "192.0.2.1:443"), Allow);
        assert_eq!(decided(&both, "203.0.113.1:443"), Deny);
        let dialed = |levels: &[Arc<Level>], destination: &str, address: &str| {
            let (destination, address) = (destination.parse().unwrap(), address.parse().unwrap());
            may_dial(levels, &destination, address, &[], &Moment::default())
        };
        let closed = Err(Forbidden::NetworkPolicy);
        assert_eq!(dialed(&both, "a.example:443", "203.0.113.1"), closed);
        assert_eq!(dialed(&both, "a.example:443", "10.0.0.1"), closed);
        assert_eq!(dialed(&both, "a.example:443", "::ffff:10.0.0.1"), closed);
        let block =
            serde_json::json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.1.0.0/16", "9.0.0.0/8"]}});
        let wide =
            [network(serde_json::json!([{"to": [block], "ports": [{"port": 443}]}])).beside, both[1].clone()];
        assert_eq!(dialed(&wide, "a.example:443", "8.8.8.8"), Ok(()));
        assert_eq!(dialed(&wide, "a.example:443", "10.2.0.1"), Ok(()));
        for address in ["9.9.9.9", "10.1.0.1", "2606:4700::1"] {
            assert_eq!(dialed(&wide, "a.example:443", address), closed, "{address}");
        }
        assert_eq!(dialed(&wide, "a.example:80", "8.8.8.8"), closed);
    }

    #[test]
    fn policy_without_egress_or_meaning_opens_nothing() {
        let unmanaged = serde_json::json!({"networkPolicy": {}, "networkPolicyManagement": "Unmanaged"});
        for spec in [serde_json::json!({}), serde_json::json!({"networkPolicy": null}), unmanaged] {
            assert!(NetworkLevel::read("t", &spec).is_none(), "{spec}");
        }
        for rules in [
            serde_json::json!({}),
            serde_json::json!({"egress": []}),
            serde_json::json!({"egress": 5}),
            serde_json::json!({"egress": [{"to": [{"ipBlock": {"cidr": "x"}}]}]}),
            serde_json::json!({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}]}]}),
            serde_json::json!({"egress": [{"to": [{"podSelector": {}}]}]}),
            serde_json::json!({"egress": [{"ports": [{"port": 1, "protocol": "UDP"}]}]}),
        ] {
            let found = NetworkLevel::read("t", &serde_json::json!({ "networkPolicy": rules })).unwrap();
            assert!(found.alone.egress.as_ref().unwrap().rules.is_empty(), "{rules}");
        }
    }
}
