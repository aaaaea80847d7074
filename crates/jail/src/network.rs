//! The network namespace of a sandbox: its plan, and how the namespace is created from it.
//!
//! A namespace has only `lo`, and its routes make every address local. So a connection from inside ends inside,
//! unless a capture (an nftables `tproxy` rule) delivers it to a listener of the plan. Addresses, routes, rules and
//! listeners are in place before the first instruction in the sandbox; the listeners' descriptors go to the caller.
//!
//! The owner of a namespace is the user namespace whose capabilities count in it:
//!
//! - **A Pod's** is created by the warden, so the initial user namespace owns it. Its containers join it. Code that
//!   gained capabilities in the user namespace of its container would still have none over the network. The warden
//!   keeps a few namespaces in stock, because creating one takes a third of the time of a jail.
//! - **That of `hutch run`** is created by the launched process itself, in sequence, so the jail's user namespace owns
//!   it: an ordinary user can create no other, and can enter it no more from outside. Init gives up all capabilities
//!   over it before the command starts. A thread for it beside the rest was no faster.

mod datagram;
mod listen;
mod netlink;
mod nft;
mod route;
mod socket;
mod stock;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};

use crate::error::Error;

pub(crate) use self::stock::Stock;
pub use datagram::{Datagram, receive_datagram, send_datagram};
pub use socket::{Connecting, connect_in};

/// Maximum number of entries in each list of a plan. All descriptors of the listeners must fit into one message.
const MAX_ENTRIES: usize = 64;

/// Plan of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPlan {
    /// Addresses on `lo`, beside 127.0.0.1 and ::1.
    pub addresses: Vec<IpAddr>,
    /// Routes to `lo`, beside those that come with the addresses.
    pub routes: Vec<LocalRoute>,
    /// Sockets that are opened in the namespace. Their descriptors are returned in this order.
    pub listeners: Vec<Listener>,
    /// Connections from inside that are delivered to a listener, whatever their destination. The first match decides.
    /// Connections to loopback and to `addresses` are never captured.
    pub captures: Vec<Capture>,
}

/// Route that makes a range of addresses local.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalRoute {
    /// First address of the range.
    pub destination: IpAddr,
    /// Length of the prefix in bits, 0 to 32 for IPv4 and 0 to 128 for IPv6.
    pub prefix: u8,
    /// Source address of connections that bind none. Without it, their source is their destination.
    pub source: Option<IpAddr>,
}

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A socket that is opened in the namespace: listening for TCP, bound for UDP. It is non-blocking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// TCP or UDP.
    pub transport: Transport,
    /// Where it is bound.
    pub address: SocketAddr,
    /// `true` when captures may deliver to it (`IP_TRANSPARENT`). `getsockname` of an accepted connection is then the
    /// original destination; a UDP socket receives it with each datagram (`IP_RECVORIGDSTADDR`).
    pub transparent: bool,
}

/// Rule that delivers connections from inside to a transparent listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capture {
    /// TCP or UDP.
    pub transport: Transport,
    /// Destination port of what is captured; without it, every port.
    pub port: Option<u16>,
    /// Address of the listener. What is captured has the same IP version.
    pub to: SocketAddr,
}

impl NetworkPlan {
    /// Returns the plan of a namespace without a way out: all addresses are local, none is captured.
    pub fn closed(addresses: Vec<IpAddr>) -> NetworkPlan {
        let all = |destination: IpAddr| LocalRoute {
            destination,
            prefix: 0,
            source: addresses.iter().find(|own| own.is_ipv4() == destination.is_ipv4()).copied(),
        };
        let routes = vec![all(IpAddr::from([0; 4])), all(IpAddr::from([0_u16; 8]))];
        NetworkPlan { addresses, routes, ..NetworkPlan::default() }
    }

    /// Checks the plan against its bounds.
    ///
    /// # Errors
    /// [`Error::Spec`], which names the entry.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Spec(format!("network.{what}")));
        for (list, count) in [
            ("addresses", self.addresses.len()),
            ("routes", self.routes.len()),
            ("listeners", self.listeners.len()),
            ("captures", self.captures.len()),
        ] {
            if count > MAX_ENTRIES {
                return refuse(format!("{list}: {count} entries are more than {MAX_ENTRIES}"));
            }
        }
        for (number, route) in self.routes.iter().enumerate() {
            let longest = if route.destination.is_ipv4() { 32 } else { 128 };
            if route.prefix > longest {
                return refuse(format!("routes[{number}].prefix: {} is more than {longest}", route.prefix));
            }
            if let Some(source) = route.source.filter(|source| !self.addresses.contains(source)) {
                return refuse(format!("routes[{number}].source: {source} is not one of the addresses"));
            }
        }
        for (number, capture) in self.captures.iter().enumerate() {
            let Capture { transport, to, .. } = capture;
            let serves = |listener: &Listener| {
                listener.transparent && listener.transport == *transport && listener.address == *to
            };
            if !self.listeners.iter().any(serves) {
                return refuse(format!(
                    "captures[{number}].to: no transparent {transport:?} listener has the address {to}"
                ));
            }
        }
        Ok(())
    }
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Network { step: step.into(), errno: errno.into() }
}

/// Creates a network namespace and enters it with the calling process. Returns the listeners.
pub(crate) fn enter_new(plan: &NetworkPlan) -> Result<Vec<OwnedFd>, Error> {
    unshare()?;
    configure(plan)
}

/// Enters a new namespace, in which `lo` is still down.
fn unshare() -> Result<(), Error> {
    // SAFETY: no descriptor table or memory is unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| Error::Namespaces { errno: errno.into() })?;
    allow_all_ports();
    Ok(())
}

/// Does what the plan says to the namespace of the calling process. Returns the listeners.
fn configure(plan: &NetworkPlan) -> Result<Vec<OwnedFd>, Error> {
    route::apply(plan)?;
    let listeners = plan.listeners.iter().map(listen::open).collect::<Result<_, _>>()?;
    if !plan.captures.is_empty() {
        nft::apply(plan)?;
    }
    Ok(listeners)
}

/// Lets programs without privileges listen on ports below 1024. The namespace belongs to one sandbox, so nothing else
/// relies on who may use these ports. Where the setting cannot be written, only the higher ports are usable.
fn allow_all_ports() {
    let path = c"/proc/sys/net/ipv4/ip_unprivileged_port_start";
    if let Ok(file) = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::io::write(&file, b"0");
    }
}

/// Opens the network namespace of the calling process.
fn current() -> Result<OwnedFd, Error> {
    rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("open the namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured() -> NetworkPlan {
        let address: SocketAddr = "198.18.0.1:9".parse().unwrap();
        let mut plan = NetworkPlan::closed(vec!["10.89.0.7".parse().unwrap()]);
        plan.listeners = vec![Listener { transport: Transport::Tcp, address, transparent: true }];
        plan.captures = vec![Capture { transport: Transport::Tcp, port: None, to: address }];
        plan
    }

    #[test]
    fn plan_out_of_bounds_is_refused_by_name() {
        type Change = fn(&mut NetworkPlan);
        let refused: [(&str, Change); 7] = [
            ("network.addresses", |plan| plan.addresses = vec![IpAddr::from([10, 0, 0, 1]); 65]),
            ("network.routes[0].prefix: 33", |plan| plan.routes[0].prefix = 33),
            ("network.routes[1].prefix: 129", |plan| plan.routes[1].prefix = 129),
            ("network.routes[0].source: 1.2.3.4", |plan| {
                plan.routes[0].source = Some(IpAddr::from([1, 2, 3, 4]))
            }),
            ("network.captures[0].to", |plan| plan.listeners[0].transparent = false),
            ("network.captures[0].to", |plan| plan.listeners[0].transport = Transport::Udp),
            ("network.captures[0].to", |plan| plan.listeners.clear()),
        ];
        assert_eq!(captured().check(), Ok(()));
        for (names, change) in refused {
            let mut plan = captured();
            change(&mut plan);
            let error = plan.check().expect_err(names).to_string();
            assert!(error.contains(names), "{error:?} does not name {names:?}");
        }
    }

    #[test]
    fn closed_plan_prefers_the_own_address_as_source() {
        let plan = NetworkPlan::closed(vec!["10.89.0.7".parse().unwrap()]);
        let sources: Vec<_> = plan.routes.iter().map(|route| route.source).collect();
        assert_eq!(sources, [Some("10.89.0.7".parse().unwrap()), None]);
    }
}
