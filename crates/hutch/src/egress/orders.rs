//! Orders to the proxy of which tenants decide how large they are.

use hutch_egress::control::Order;
use hutch_policy::{Facts, Identity, Level, Peer};
use hutch_privsep::Channel;

/// Maximum bytes of an order that a tenant influences.
const ORDER: usize = 128 << 10;

/// Sends an order. Tenants decide how large levels, facts, credentials and peers are: of one that is too large, the
/// strictest is sent, so that it concerns its own sandbox alone.
pub(crate) async fn send(channel: &Channel, order: Order) -> std::io::Result<()> {
    let bytes = serde_json::to_vec(&order).map_or(usize::MAX, |bytes| bytes.len());
    let order = if bytes <= ORDER { order } else { strictest(order) };
    channel.send(&order, &[]).await
}

fn strictest(order: Order) -> Order {
    tracing::warn!("an order is too large for the proxy; closing its sandbox");
    match order {
        Order::Level { id, level } => {
            let egress = Some(hutch_policy::Egress::default());
            Order::Level { id, level: Level { mode: hutch_policy::Mode::Enforce, egress, ..level } }
        }
        // Attributes and labels then have no value. Its names are short, and conditions that deny compare them.
        Order::Facts { sandbox, facts } => {
            let Identity { name, namespace, .. } = facts.sandbox;
            let sandbox_facts = Identity { name, namespace, ..Identity::default() };
            Order::Facts { sandbox, facts: Facts { sandbox: sandbox_facts, ..Facts::default() } }
        }
        // The first are those of its own namespace.
        Order::Peers { sandbox, namespace, mut peers } => {
            let bytes = |peers: &[Peer]| serde_json::to_vec(peers).map_or(usize::MAX, |bytes| bytes.len());
            while !peers.is_empty() && bytes(&peers) > ORDER / 2 {
                peers.truncate(peers.len() / 2);
            }
            Order::Peers { sandbox, namespace, peers }
        }
        Order::Credentials { sandbox, .. } => Order::Credentials { sandbox, credentials: Vec::new() },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_and_levels_that_are_too_large_are_replaced_by_the_strictest() {
        let sandbox = Identity { namespace: "team".to_owned(), name: "a".to_owned(), ..Identity::default() };
        let task = [("x".to_owned(), "\u{1}".repeat(32_000))].into();
        let facts = Facts { task, sandbox: sandbox.clone(), ..Facts::default() };
        let level = Level::new(hutch_policy::Authority::Cluster, "p", None);
        let level = Level { mode: hutch_policy::Mode::Observe, ..level };
        match strictest(Order::Facts { sandbox: 1, facts }) {
            // Regression: the namespace was empty, so that a rule that denied it did not.
            Order::Facts { sandbox: 1, facts } => assert_eq!(facts, Facts { sandbox, ..Facts::default() }),
            other => panic!("{other:?}"),
        }
        // Of peers, the first stay: those of the own namespace.
        let peer = |number: usize| Peer {
            service: format!("{number}-{}", "s".repeat(50)),
            namespace: "team".to_owned(),
            ports: (0..32).filter_map(|at| hutch_policy::PortRange::new(at * 2 + 1, at * 2 + 1)).collect(),
        };
        let peers: Vec<Peer> = (0..1000).map(peer).collect();
        match strictest(Order::Peers { sandbox: 1, namespace: "team".to_owned(), peers: peers.clone() }) {
            Order::Peers { peers: left, .. } => assert!(!left.is_empty() && peers.starts_with(&left)),
            other => panic!("{other:?}"),
        }
        match strictest(Order::Level { id: 2, level }) {
            Order::Level { id: 2, level } => {
                assert_eq!(level.mode, hutch_policy::Mode::Enforce);
                assert!(level.egress.is_some_and(|egress| egress.rules.is_empty()));
            }
            other => panic!("{other:?}"),
        }
    }
}
