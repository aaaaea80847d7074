//! Target of a request, parsed strictly from its headers.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use hutch_api::syntax::is_label;

use crate::refusal::Refusal;

pub(crate) const ID: HeaderName = HeaderName::from_static("x-sandbox-id");
const NAMESPACE: HeaderName = HeaderName::from_static("x-sandbox-namespace");
const PORT: HeaderName = HeaderName::from_static("x-sandbox-port");
const POD_IP: HeaderName = HeaderName::from_static("x-sandbox-pod-ip");
const UID: HeaderName = HeaderName::from_static("x-sandbox-uid");
const TIMEOUT: HeaderName = HeaderName::from_static("x-sandbox-timeout");

/// Default namespace.
const DEFAULT_NAMESPACE: &str = "default";
/// Default port: the runtime's.
const DEFAULT_PORT: u16 = 8888;

/// Port of a Sandbox, and what the client expects of that Sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Namespace of the Sandbox.
    pub namespace: String,
    /// Name of the Sandbox.
    pub id: String,
    /// TCP port in the Sandbox.
    pub port: u16,
    /// Address that the client expects the Pod to have.
    pub pod_ip: Option<IpAddr>,
    /// UID that the client expects the Sandbox to have.
    pub uid: Option<String>,
    /// Maximum time that the client waits for the head of the response.
    pub timeout: Option<Duration>,
}

impl Target {
    /// Parses the routing headers. An empty one counts as absent; a repeated one is an error. `loopback`
    /// allows loopback addresses of Pods.
    pub(crate) fn read(headers: &HeaderMap, loopback: bool) -> Result<Target, Refusal> {
        let id = one(headers, &ID).map_err(|()| Refusal::BadId)?.ok_or(Refusal::NoId)?;
        let namespace =
            one(headers, &NAMESPACE).map_err(|()| Refusal::BadNamespace)?.unwrap_or(DEFAULT_NAMESPACE);
        if !is_label(id) {
            return Err(Refusal::BadId);
        }
        if !is_label(namespace) {
            return Err(Refusal::BadNamespace);
        }
        let port = match one(headers, &PORT).map_err(|()| Refusal::BadPort)? {
            None => DEFAULT_PORT,
            Some(text) => port(text).ok_or(Refusal::BadPort)?,
        };
        let pod_ip = match one(headers, &POD_IP).map_err(|()| Refusal::BadAddress)? {
            None => None,
            Some(text) => Some(address(text, loopback).ok_or(Refusal::BadAddress)?),
        };
        let uid = one(headers, &UID).unwrap_or(Some("ambiguous")).map(str::to_owned);
        // An invalid timeout counts as absent, as in the upstream contract.
        let timeout = one(headers, &TIMEOUT).ok().flatten().and_then(seconds);
        Ok(Target { namespace: namespace.to_owned(), id: id.to_owned(), port, pod_ip, uid, timeout })
    }
}

/// Returns the only value of a header, if it is present and not empty.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            value.to_str().map(|text| Some(text).filter(|text| !text.is_empty())).map_err(|_| ())
        }
        (Some(_), Some(_)) => Err(()),
    }
}

/// Parses digits only: no sign, no leading zero.
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}

/// Parses an address in its canonical spelling, of a class that a Pod can have.
fn address(text: &str, loopback: bool) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    (can_be_a_pods(address, loopback) && address.to_string() == text).then_some(address)
}

/// Returns true for an address that a Pod can have: unicast, not this host (except with `loopback`), not
/// link-local, not an IPv4 address embedded in IPv6.
pub(crate) fn can_be_a_pods(address: IpAddr, loopback: bool) -> bool {
    let class = match address {
        IpAddr::V4(v4) => !v4.is_link_local() && v4 != Ipv4Addr::BROADCAST && v4.octets()[0] != 0,
        IpAddr::V6(v6) if v6.is_loopback() => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4().is_none(),
    };
    class && (loopback || !address.is_loopback()) && !address.is_unspecified() && !address.is_multicast()
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    (seconds > 0.0).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Target, Refusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        Target::read(&headers, false)
    }

    #[test]
    fn absent_headers_have_defaults() {
        let plain = read(&[("X-Sandbox-ID", "a")]).unwrap();
        let expected = Target {
            namespace: "default".into(),
            id: "a".into(),
            port: 8888,
            pod_ip: None,
            uid: None,
            timeout: None,
        };
        assert_eq!(plain, expected);
        let empty = [
            ("X-Sandbox-Namespace", ""),
            ("X-Sandbox-Port", ""),
            ("X-Sandbox-Pod-IP", ""),
            ("X-Sandbox-Timeout", ""),
        ];
        assert_eq!(read(&[&[("x-sandbox-id", "a")][..], &empty].concat()).unwrap(), expected);
        let all = read(&[
            ("x-sandbox-id", "sandbox-claim-0a1b2c3d"),
            ("x-sandbox-namespace", "team-1"),
            ("x-sandbox-port", "65535"),
            ("x-sandbox-pod-ip", "10.89.0.7"),
            ("x-sandbox-uid", "u"),
            ("x-sandbox-timeout", "1.5"),
        ]);
        let all = all.unwrap();
        assert_eq!((all.port, all.pod_ip), (65535, Some("10.89.0.7".parse().unwrap())));
        assert_eq!((all.uid.as_deref(), all.timeout), (Some("u"), Some(Duration::from_millis(1500))));
    }

    #[test]
    fn each_invalid_header_has_its_error() {
        let with = |name: &'static str, value: &'static str| read(&[("x-sandbox-id", "a"), (name, value)]);
        assert_eq!(read(&[]), Err(Refusal::NoId));
        assert_eq!(read(&[("x-sandbox-id", "")]), Err(Refusal::NoId));
        let long = "a".repeat(64);
        for id in ["A", "a.b", "-a", "a-", "a_b", "a/b", "a b", "ä", &long] {
            assert_eq!(read(&[("x-sandbox-id", id)]), Err(Refusal::BadId), "{id:?}");
        }
        assert_eq!(with("x-sandbox-id", "b"), Err(Refusal::BadId), "twice");
        for namespace in ["Default", "a.b", "../x"] {
            assert_eq!(with("x-sandbox-namespace", namespace), Err(Refusal::BadNamespace), "{namespace:?}");
        }
        for port in ["0", "-1", "65536", "+28888", "028888", "8888 ", "x", "1e3", "٣"] {
            assert_eq!(with("x-sandbox-port", port), Err(Refusal::BadPort), "{port:?}");
        }
        for address in [
            "x",
            "localhost",
            "127.0.0.1",
            "127.1",
            "0.0.0.0",
            "0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "010.0.0.1",
            "10.0.0.1:80",
            "0x0a000001",
            "167772161",
            "10.0.0.1/8",
            "[fd00::1]",
            "::",
            "::1",
            "fe80::1",
            "fe80::1%eth0",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "fd00:0:0:0:0:0:0:1",
            "FD00::1",
        ] {
            assert_eq!(with("x-sandbox-pod-ip", address), Err(Refusal::BadAddress), "{address:?}");
        }
        assert!(with("x-sandbox-pod-ip", "fd00::1").is_ok());
        for timeout in ["-1", "0", "nan", "inf", "x", "1e400"] {
            assert_eq!(with("x-sandbox-timeout", timeout).unwrap().timeout, None, "{timeout:?}");
        }
    }
    #[test]
    fn loopback_addresses_need_permission() {
        for text in ["127.0.0.1", "127.8.0.1", "::1"] {
            assert!(address(text, true).is_some() && address(text, false).is_none(), "{text}");
        }
        assert!(address("::ffff:127.0.0.1", true).is_none() && address("0.0.0.0", true).is_none());
    }

    proptest! {
        #[test]
        fn ports_have_one_spelling(text in "[+ 0-9a-fx-]{0,7}", number in 1_u16..) {
            if let Some(port) = port(&text) {
                prop_assert_eq!(port.to_string(), text);
            }
            prop_assert_eq!(port(&number.to_string()), Some(number));
        }

        #[test]
        fn addresses_have_one_spelling(text in "[0-9a-fA-F.:x%\\[\\]]{0,20}", bits in any::<u32>(), wide in any::<u128>()) {
            if let Some(address) = address(&text, true) {
                prop_assert_eq!(address.to_string(), text);
            }
            for known in [IpAddr::from(bits.to_be_bytes()), IpAddr::from(wide.to_be_bytes())] {
                prop_assert_eq!(address(&known.to_string(), false).is_some(), can_be_a_pods(known, false));
            }
        }

        #[test]
        fn accepted_names_are_labels(text in ".{0,70}") {
            if is_label(&text) {
                prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') && text.len() <= 63);
            }
        }

        #[test]
        fn any_header_is_handled(values in proptest::collection::vec("[ -~]{0,70}", 6)) {
            let names = [&ID, &NAMESPACE, &PORT, &POD_IP, &UID, &TIMEOUT];
            let pairs = names.into_iter().zip(&values);
            let headers: HeaderMap = pairs.map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
            if let Ok(target) = Target::read(&headers, false) {
                prop_assert!(is_label(&target.id) && is_label(&target.namespace) && target.port > 0);
            }
        }
    }
}
