//! The gateway of a cluster, through which Sandboxes reach the network: what their Pods get, and what their NetworkPolicy
//! opens.

mod bundle;
mod credentials;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
use hutch_api::{Sandbox, SandboxTemplate, label};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodDNSConfig, PodSpec, Service};
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use self::bundle::Bundle;
pub(crate) use self::bundle::Bundles;
use crate::error::Error;

/// Minimum bytes of the key of tokens.
const KEY: usize = 32;
/// Purpose of the tokens, so that a key of something else yields none.
const PURPOSE: &str = "hutch egress gateway, version 1";
/// Purpose of the key from which placeholders are derived.
const PLACEHOLDERS: &str = "placeholders of credentials of a hutch egress gateway, version 1";
/// User in the URL of the proxy; the token alone counts.
const USER: &str = "sandbox";
/// Destinations that programs reach without the proxy.
const DIRECT: &str = "localhost,127.0.0.1,::1";
/// Name server of the Pods. Nothing answers there, so a lookup fails at once, and a query carries nothing out: the gateway
/// resolves names.
const NAME_SERVER: &str = "127.0.0.1";

/// Key from which the token of each Sandbox and its placeholders of credentials are derived. Controller and gateway have the
/// same one.
#[derive(Clone)]
pub struct TokenKey {
    tokens: Key,
    /// Key of placeholders of credentials, derived from that of tokens.
    placeholders: Key,
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenKey")
    }
}

impl TokenKey {
    /// Returns the key with these bytes.
    ///
    /// # Errors
    /// They are too few.
    pub fn new(bytes: &[u8]) -> Result<TokenKey, String> {
        if bytes.len() < KEY {
            return Err(format!("the key has {} bytes; it needs at least {KEY}", bytes.len()));
        }
        let tokens = Key::new(HMAC_SHA256, bytes);
        let placeholders = Key::new(HMAC_SHA256, sign(&tokens, PLACEHOLDERS.as_bytes()).as_ref());
        Ok(TokenKey { tokens, placeholders })
    }

    /// Returns the token of the Sandbox with this uid.
    pub fn token(&self, uid: &str) -> String {
        let tag = sign(&self.tokens, format!("{PURPOSE}\0{uid}").as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A gateway.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// Address to which Pods connect.
    address: SocketAddr,
    /// Pods or address of the gateway, for a NetworkPolicy.
    peer: NetworkPolicyPeer,
    /// Port there.
    port: IntOrString,
    key: TokenKey,
    /// Certificates that the Pods trust, where TLS ends at the gateway.
    bundle: Option<Bundle>,
}

impl Gateway {
    /// Returns the gateway at an address.
    pub fn at(address: SocketAddr, key: TokenKey) -> Gateway {
        let length = if address.is_ipv4() { 32 } else { 128 };
        let block = IPBlock { cidr: format!("{}/{length}", address.ip()), except: None };
        let peer = NetworkPolicyPeer { ip_block: Some(block), ..NetworkPolicyPeer::default() };
        Gateway { address, peer, port: IntOrString::Int(address.port().into()), key, bundle: None }
    }

    /// Returns the gateway behind a port of a Service. Rules of a NetworkPolicy see the Pods behind it.
    ///
    /// # Errors
    /// The Service has no address, no selector, or not this port.
    pub fn behind(service: &Service, port: u16, key: TokenKey) -> Result<Gateway, String> {
        let spec = service.spec.clone().unwrap_or_default();
        let address = spec.cluster_ip.and_then(|address| address.parse::<IpAddr>().ok());
        let address = address.ok_or("the Service has no clusterIP; it must not be headless")?;
        let selector = spec.selector.filter(|selector| !selector.is_empty());
        let selector = selector.ok_or("the Service has no selector")?;
        let found = spec.ports.iter().flatten().find(|found| found.port == i32::from(port));
        let found = found.ok_or_else(|| format!("the Service has no port {port}"))?;
        let target = found.target_port.clone().unwrap_or(IntOrString::Int(port.into()));
        let namespace = service.namespace().unwrap_or_default();
        let labels = [(label::NAMESPACE_NAME.to_owned(), namespace)].into();
        let selecting = |labels| LabelSelector { match_labels: Some(labels), match_expressions: None };
        let peer = NetworkPolicyPeer {
            namespace_selector: Some(selecting(labels)),
            pod_selector: Some(selecting(selector)),
            ip_block: None,
        };
        Ok(Gateway { address: SocketAddr::from((address, port)), peer, port: target, key, bundle: None })
    }

    /// Returns the gateway with the certificates that its Pods trust, PEM: its authority, and the public ones.
    ///
    /// # Errors
    /// They cannot be the content of a ConfigMap that everyone may read.
    pub fn trusting(self, certificates: String) -> Result<Gateway, String> {
        Ok(Gateway { bundle: Some(Bundle::new(certificates)?), ..self })
    }

    /// Prepares a namespace for the Pod of a Sandbox, and the Pod for its credentials. Without certificates no TLS ends at the
    /// gateway, so that it can put no value into a request.
    pub(crate) async fn prepare(
        &self,
        bundles: &Bundles,
        of: (&Sandbox, Option<&SandboxTemplate>),
        pod: &mut Pod,
        now: Timestamp,
    ) -> Result<(), Error> {
        let Some(bundle) = &self.bundle else { return Ok(()) };
        bundles.write(&pod.namespace().unwrap_or_default(), bundle).await?;
        if pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)) {
            return Ok(());
        }
        credentials::offer(bundles.client(), &self.key, of, pod, now).await
    }

    /// Returns the only egress that a NetworkPolicy allows.
    pub(crate) fn rule(&self) -> NetworkPolicyEgressRule {
        let port = NetworkPolicyPort {
            port: Some(self.port.clone()),
            protocol: Some("TCP".to_owned()),
            end_port: None,
        };
        NetworkPolicyEgressRule { to: Some(vec![self.peer.clone()]), ports: Some(vec![port]) }
    }

    /// Admits the gateway, which decides about connections from other Sandboxes.
    pub(crate) fn ingress(&self) -> NetworkPolicyIngressRule {
        NetworkPolicyIngressRule { from: Some(vec![self.peer.clone()]), ports: None }
    }

    /// Has the containers of a Sandbox use the gateway. A Pod with the network of its Node is left as it is: the gateway
    /// cannot tell it from others.
    pub(crate) fn lead(&self, pod: &mut PodSpec, sandbox: &Sandbox) {
        let Some(uid) = sandbox.uid().filter(|_| pod.host_network != Some(true)) else { return };
        let variables = self.variables(&uid);
        let containers = pod.containers.iter_mut().chain(pod.init_containers.iter_mut().flatten());
        containers.for_each(|container| add(container, &variables));
        if self.bundle.is_some() {
            bundle::mount(pod);
        }
        pod.dns_policy = Some("None".to_owned());
        let nameservers = Some(vec![NAME_SERVER.to_owned()]);
        pod.dns_config = Some(PodDNSConfig { nameservers, ..PodDNSConfig::default() });
    }

    fn variables(&self, uid: &str) -> Vec<EnvVar> {
        let credential = format!("{USER}:{}", self.key.token(uid));
        let http = format!("http://{credential}@{}", self.address);
        let socks = format!("socks5h://{credential}@{}", self.address);
        let values =
            [("HTTPS_PROXY", &*http), ("HTTP_PROXY", &http), ("ALL_PROXY", &socks), ("NO_PROXY", DIRECT)];
        let both = values.iter().flat_map(|(name, value)| {
            [(*name).to_owned(), name.to_ascii_lowercase()].map(|name| EnvVar {
                name,
                value: Some((*value).to_owned()),
                value_from: None,
            })
        });
        both.collect()
    }
}

/// Adds the variables that a container does not have.
fn add(container: &mut Container, variables: &[EnvVar]) {
    let own = container.env.get_or_insert_default();
    let missing = variables.iter().filter(|added| !own.iter().any(|found| found.name == added.name));
    let missing: Vec<EnvVar> = missing.cloned().collect();
    own.extend(missing);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key() -> TokenKey {
        TokenKey::new(&[7; KEY]).unwrap()
    }

    fn sandbox() -> Sandbox {
        serde_json::from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "s", "namespace": "d", "uid": "u1"},
            "spec": {"podTemplate": {"spec": {"containers": []}}},
        }))
        .unwrap()
    }

    #[test]
    fn token_belongs_to_one_sandbox_and_one_key() {
        let token = key().token("u1");
        assert_eq!((token.len(), &token), (64, &key().token("u1")));
        assert_ne!(token, key().token("u2"));
        assert_ne!(token, TokenKey::new(&[8; KEY]).unwrap().token("u1"));
        assert!(TokenKey::new(&[7; KEY - 1]).is_err());
        let gateway = Gateway::at("10.96.0.9:3128".parse().unwrap(), key());
        assert!(!format!("{gateway:?}").contains(&token));
        assert!(format!("{:?}", key()).len() < 10, "no byte of the key is shown");
    }

    #[test]
    fn every_container_is_led_to_the_gateway() {
        let gateway = Gateway::at("10.96.0.9:3128".parse().unwrap(), key());
        let mut pod: PodSpec = serde_json::from_value(json!({
            "containers": [{"name": "a", "env": [{"name": "NO_PROXY", "value": "own"}]}],
            "initContainers": [{"name": "b"}], "dnsPolicy": "ClusterFirst",
        }))
        .unwrap();
        gateway.lead(&mut pod, &sandbox());
        let value = |container: &Container, name: &str| {
            let mut env = container.env.iter().flatten();
            env.find(|variable| variable.name == name).and_then(|variable| variable.value.clone()).unwrap()
        };
        let token = key().token("u1");
        for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
            for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
                assert_eq!(value(container, name), format!("http://sandbox:{token}@10.96.0.9:3128"));
            }
            for name in ["ALL_PROXY", "all_proxy"] {
                assert_eq!(value(container, name), format!("socks5h://sandbox:{token}@10.96.0.9:3128"));
            }
            assert_eq!(value(container, "no_proxy"), DIRECT);
        }
        assert_eq!(value(&pod.containers[0], "NO_PROXY"), "own");
        assert_eq!(pod.dns_policy.as_deref(), Some("None"));
        assert_eq!(pod.dns_config.unwrap().nameservers.unwrap(), [NAME_SERVER]);

        let own: PodSpec =
            serde_json::from_value(json!({"containers": [{"name": "a"}], "hostNetwork": true})).unwrap();
        let mut pod = own.clone();
        gateway.lead(&mut pod, &sandbox());
        assert_eq!(pod, own, "the network of the Node");
    }

    #[test]
    fn gateway_of_a_service_is_its_address_and_its_pods() {
        let service = |spec: serde_json::Value| {
            let metadata = json!({"name": "g", "namespace": "n"});
            let service = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
            Gateway::behind(&service, 3128, key())
        };
        let ports = json!([{"port": 3128, "targetPort": "proxy"}]);
        let found =
            service(json!({"clusterIP": "10.96.0.9", "selector": {"app": "g"}, "ports": ports})).unwrap();
        assert_eq!(found.address, "10.96.0.9:3128".parse().unwrap());
        assert_eq!(
            serde_json::to_value(found.rule()).unwrap(),
            json!({
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "n"}},
                    "podSelector": {"matchLabels": {"app": "g"}}}],
                "ports": [{"port": "proxy", "protocol": "TCP"}],
            })
        );
        for wrong in [
            json!({"clusterIP": "None", "selector": {"app": "g"}, "ports": ports}),
            json!({"clusterIP": "10.96.0.9", "ports": ports}),
            json!({"clusterIP": "10.96.0.9", "selector": {"app": "g"}, "ports": [{"port": 1}]}),
        ] {
            assert!(service(wrong.clone()).is_err(), "{wrong}");
        }
        let at = Gateway::at("[fd00::1]:3128".parse().unwrap(), key());
        assert_eq!(
            serde_json::to_value(at.rule()).unwrap()["to"],
            json!([{"ipBlock": {"cidr": "fd00::1/128"}}])
        );
    }
}
