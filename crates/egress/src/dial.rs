//! Connections to the outside: a name is resolved once, and an address is judged before it is dialed.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hutch_policy::{Destination, Forbidden, Host, Level, Moment, judged_as, may_dial};
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::descriptors::Descriptors;
use crate::resolve::Resolver;
use crate::way::{Remedy, Unreachable, Way};

/// Maximum time for one address.
const CONNECT: Duration = Duration::from_secs(10);

/// Connects to a destination that these levels allow. The resolver and the descriptors are those of the sandbox. `begin` is done
/// before the first connection, when an address to which the destination leads is allowed.
pub(crate) async fn dial<E: From<Unreachable>>(
    way: &Way,
    destination: &Destination,
    levels: &[Arc<Level>],
    moment: &Moment<'_>,
    (resolver, descriptors): (&Resolver, &Descriptors),
    begin: impl Future<Output = Result<(), E>> + Send,
) -> Result<TcpStream, E> {
    if let Some(proxy) = &way.proxy {
        if let Host::Address(address) = destination.host {
            if way.is_sandbox(address) {
                return Err(Unreachable::Sandbox(address).into());
            }
            may_dial(levels, destination, address, &[], moment)
                .map_err(|reason| closed(levels, address, reason))?;
        }
        begin.await?;
        return Ok(proxy.connect(destination).await?);
    }
    let mut begin = Some(begin);
    let mut last = Unreachable::Name(io::ErrorKind::NotFound.into());
    for address in addresses(destination, (resolver, descriptors)).await? {
        if way.is_sandbox(address.ip()) {
            last = Unreachable::Sandbox(address.ip());
            continue;
        }
        if let Err(reason) = may_dial(levels, destination, address.ip(), &own(address), moment) {
            last = closed(levels, address.ip(), reason);
            continue;
        }
        if let Some(begin) = begin.take() {
            begin.await?;
        }
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Unreachable::Connect(error),
            Err(_) => last = Unreachable::Connect(io::ErrorKind::TimedOut.into()),
        }
    }
    if let Host::Name(name) = &destination.host {
        resolver.forget(name);
    }
    Err(last.into())
}

fn closed(levels: &[Arc<Level>], address: IpAddr, reason: Forbidden) -> Unreachable {
    let remedy = Remedy::of(levels, address, &reason);
    Unreachable::Closed(address, reason, remedy)
}

/// Returns true if an open connection to this address may stay.
pub(crate) fn may_stay(
    way: &Way,
    levels: &[Arc<Level>],
    destination: &Destination,
    address: SocketAddr,
    moment: &Moment<'_>,
) -> bool {
    closed_now(way, levels, destination, (address.ip(), &own(address)), moment).is_none()
}

/// Returns why an open connection to this address may not stay. `own` has it if it is one of this machine.
pub(crate) fn closed_now(
    way: &Way,
    levels: &[Arc<Level>],
    destination: &Destination,
    (address, own): (IpAddr, &[IpAddr]),
    moment: &Moment<'_>,
) -> Option<Unreachable> {
    // Through a proxy, only an address that the sandbox named says where the connection leads.
    let (address, own) = match (&way.proxy, &destination.host) {
        (None, _) => (address, own),
        (Some(_), Host::Address(named)) => (*named, [].as_slice()),
        (Some(_), Host::Name(_)) => return None,
    };
    if way.is_sandbox(address) {
        return Some(Unreachable::Sandbox(address));
    }
    let reason = may_dial(levels, destination, address, own, moment).err()?;
    Some(closed(levels, address, reason))
}

/// Returns the addresses of a destination.
async fn addresses(
    destination: &Destination,
    (resolver, descriptors): (&Resolver, &Descriptors),
) -> Result<Vec<SocketAddr>, Unreachable> {
    let found = match &destination.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => resolver.addresses(name, descriptors).await?,
    };
    Ok(found.into_iter().map(|address| SocketAddr::new(address, destination.port.get())).collect())
}

/// Returns the address as which an address is judged, if one of both is of this machine, which is where a socket can be bound.
/// No packet is sent. If that cannot be found out, for example without descriptors, it counts as one.
pub(crate) fn own(address: SocketAddr) -> Vec<IpAddr> {
    let is_own = |address: IpAddr| match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        Err(error) => !matches!(
            Errno::from_io_error(&error),
            Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL)
        ),
    };
    let (named, judged) = (address.ip(), judged_as(address.ip()));
    (is_own(judged) || (named != judged && is_own(named))).then_some(judged).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Moment};

    use super::*;

    /// A level that opens these ranges for the destination.
    fn levels(destination: &Destination, private: &[&str]) -> Vec<Arc<Level>> {
        let rule = serde_json::json!({
            "name": "test", "any": true, "cidrs": ["0.0.0.0/0"], "ports": [destination.port], "private": private,
        });
        let egress = serde_json::from_value(serde_json::json!({ "rules": [rule] })).unwrap();
        vec![Arc::new(Level::new(Authority::Invocation, "test", Some(egress)))]
    }

    /// Dials a destination for which a level opens these ranges.
    async fn dialed(destination: &Destination, private: &[&str]) -> Result<TcpStream, Unreachable> {
        let (way, levels, moment) = (Way::default(), levels(destination, private), Moment::default());
        let begin = async { Ok(()) };
        dial(&way, destination, &levels, &moment, (&Resolver::default(), &Descriptors::default()), begin)
            .await
    }

    #[tokio::test]
    async fn address_of_this_machine_is_dialed_only_where_a_range_opens_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let destination: Destination = listener.local_addr().unwrap().to_string().parse().unwrap();
        let error = dialed(&destination, &[]).await.unwrap_err();
        assert!(matches!(error, Unreachable::Closed(_, Forbidden::ThisMachine, _)), "{error}");
        dialed(&destination, &["127.0.0.0/8"]).await.unwrap();
    }

    #[test]
    fn closed_address_is_named_with_what_opens_it() {
        let level = |authority| Arc::new(Level::new(authority, "test", None));
        let (flags, cluster) = (level(Authority::Invocation), level(Authority::Cluster));
        let [private, other]: [IpAddr; 2] = ["10.1.2.3", "203.0.113.80"].map(|text| text.parse().unwrap());
        for (levels, address, reason, expected) in [
            (
                vec![&flags],
                other,
                Forbidden::NotPublic,
                "it is not an address of the internet; --allow-private 203.0.113.80 opens it",
            ),
            (
                vec![&flags, &cluster],
                other,
                Forbidden::NotPublic,
                "it is not an address of the internet; to open it: `private: [203.0.113.80]` in the rules that allow the \
                 host, each of a ClusterSandboxPolicy",
            ),
            (
                vec![&cluster],
                private,
                Forbidden::Private,
                "it is an address of a private network; to open it: `private: [10.1.2.3]` in the rules that allow the host",
            ),
            (
                vec![&flags],
                "64:ff9b::a01:203".parse().unwrap(),
                Forbidden::Private,
                "it is an address of a private network; --allow-private 10.1.2.3 opens it",
            ),
            (vec![&flags], other, Forbidden::NoHost, "it is not the address of a host"),
        ] {
            let levels: Vec<Arc<Level>> = levels.into_iter().cloned().collect();
            assert_eq!(closed(&levels, address, reason).to_string(), format!("{address}: {expected}"));
        }
    }

    #[tokio::test]
    async fn name_is_judged_by_the_address_to_which_it_leads() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let destination: Destination = format!("localhost:{port}").parse().unwrap();
        let error = dialed(&destination, &[]).await.unwrap_err();
        assert!(matches!(error, Unreachable::Closed(_, Forbidden::ThisMachine, _)), "{error}");
        dialed(&destination, &["127.0.0.0/8", "::1"]).await.unwrap();
    }

    #[tokio::test]
    async fn closed_address_of_a_name_is_passed_over_and_an_open_one_is_dialed() {
        let listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let destination: Destination = format!("both.invalid:{port}").parse().unwrap();
        let Host::Name(name) = &destination.host else { panic!("no name") };
        let (way, moment, resolver) = (Way::default(), Moment::default(), Resolver::default());
        let to = async |private: &[&str]| {
            let (levels, own) = (levels(&destination, private), (&resolver, &Descriptors::default()));
            dial(&way, &destination, &levels, &moment, own, async { Ok::<(), Unreachable>(()) }).await
        };
        let [closed, open]: [IpAddr; 2] = ["127.0.0.1", "127.0.0.2"].map(|text| text.parse().unwrap());
        for order in [[closed, open], [open, closed]] {
            resolver.keep(name.clone(), order.to_vec());
            assert_eq!(to(&["127.0.0.2/32"]).await.unwrap().peer_addr().unwrap().ip(), open);
        }
        // Nothing listens at the other one. The name, of which no address could be reached, is resolved again.
        to(&["127.0.0.1/32"]).await.unwrap_err();
        let error = to(&["127.0.0.2/32"]).await.unwrap_err();
        assert!(matches!(error, Unreachable::Name(_)), "{error}");
    }

    #[tokio::test]
    async fn address_of_a_sandbox_is_dialed_by_no_rule_for_addresses() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let destination: Destination = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (way, moment) = (Way::default(), Moment::default());
        way.set_sandboxes(Box::new(|address| address.is_loopback()));
        let levels = levels(&destination, &["127.0.0.0/8"]);
        let begin = std::future::pending();
        let own = (&Resolver::default(), &Descriptors::default());
        let error: Unreachable = dial(&way, &destination, &levels, &moment, own, begin).await.unwrap_err();
        assert!(matches!(error, Unreachable::Sandbox(_)), "{error}");
        assert!(!may_stay(&way, &levels, &destination, listener.local_addr().unwrap(), &moment));
    }

    /// A connection to an address outlived its range, since the address of the proxy was judged instead.
    #[test]
    fn open_connection_through_a_proxy_ends_with_the_range_of_its_address() {
        let proxy = crate::way::UpstreamProxy { address: "192.0.2.9:3128".into(), authorization: None };
        let (way, moment) = (Way::new(Vec::new(), Some(proxy)), Moment::default());
        let connected: SocketAddr = "192.0.2.9:3128".parse().unwrap();
        let address: Destination = "10.0.0.5:5432".parse().unwrap();
        let stays =
            |private: &[&str]| may_stay(&way, &levels(&address, private), &address, connected, &moment);
        assert!(stays(&["10.0.0.0/8"]));
        assert!(!stays(&[]));
        let name: Destination = "db.example:5432".parse().unwrap();
        assert!(may_stay(&way, &levels(&name, &[]), &name, connected, &moment));
    }

    #[test]
    fn own_address_is_recognized() {
        assert_eq!(own("127.0.0.1:80".parse().unwrap()), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(own("192.0.2.1:80".parse().unwrap()).is_empty());
        // As NAT64 and 6to4 lead to it.
        for address in ["[64:ff9b::7f00:1]:80", "[2002:7f00:1::]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(own(address.parse().unwrap()), ["127.0.0.1".parse::<IpAddr>().unwrap()], "{address}");
        }
    }
}
