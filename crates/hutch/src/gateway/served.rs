//! The Pods that the gateway serves.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use hutch_api::owner;
use hutch_attach::{Chosen, Closed, Conflicts, Links, Mirror, Objects, PeerRefusal, Services, choose};
use hutch_controller::TokenKey;
use hutch_egress::control::Order;
use hutch_egress::{Issued, TokenHash};
use hutch_policy::{Applying, Facts, FieldOfServer, Level, NOT_ENFORCEABLE, Peer, names_sandboxes};
use hutch_privsep::Channel;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher;

use super::closing::{Closing, Closings};
use super::condition::{Conditions, Plugin, condition};
use super::credentials::Credentials;
use super::peers::{behind, reachable};
use crate::audit_log::Subject;
use crate::egress::orders::send;

/// A Pod that the process of the proxy knows.
struct Known {
    number: u64,
    /// Namespace and name.
    name: String,
    /// Its Sandbox, for the audit log.
    subject: Subject,
    client: Client,
    levels: Vec<Arc<Level>>,
    facts: Facts,
    conflicts: Conflicts,
    namespace: String,
    /// Services through which it reaches other Sandboxes.
    peers: Vec<Peer>,
    /// Its credentials.
    issued: Vec<Issued>,
}

/// How the proxy recognizes a Pod.
#[derive(Debug, PartialEq)]
struct Client {
    addresses: Vec<IpAddr>,
    token: TokenHash,
}

impl Client {
    /// A Pod may get another owner, and then has the token of another Sandbox at the same address.
    fn of(pod: &Pod, key: &TokenKey) -> Client {
        let owner = owner::sandbox(pod).map(|owner| owner.uid.as_str()).unwrap_or_default();
        Client { addresses: addresses(pod), token: TokenHash::of(key.token(owner).as_bytes()) }
    }
}

/// The Pods of Sandboxes.
pub(super) struct Served {
    key: TokenKey,
    pods: Mirror<Arc<Pod>>,
    pub(super) closings: Mirror<Closing>,
    pub(super) services: Services,
    pub(super) credentials: Credentials,
    /// By uid.
    known: HashMap<String, Known>,
    /// Levels that the process knows, and their numbers, by their place in memory.
    levels: HashMap<usize, (Arc<Level>, u64)>,
    last: u64,
    /// Connections between Pods, by the number of the one and the address of the other.
    pub(super) links: Links<u64, IpAddr>,
    /// Time at which levels change by themselves.
    until: Option<Timestamp>,
    conditions: Conditions,
    pub(super) plugin: Plugin,
    /// The first result of the probe has not come.
    pub(super) awaits_probe: bool,
    /// The gateway has an authority.
    ends_tls: bool,
}

/// Refuses policies of which a field has an effect only in `hutch up`. Returns the fields that are to be reported instead.
fn enforceable(fields: &[FieldOfServer]) -> Result<Vec<String>, Closed> {
    let missing = |field: &FieldOfServer| format!("{} is enforced by `hutch up` alone", field.name);
    match fields.iter().find(|field| !field.reports) {
        Some(field) => {
            let message = format!("{}: no egress", missing(field));
            Err(Closed { reason: NOT_ENFORCEABLE, message, until: None })
        }
        None => Ok(fields.iter().map(missing).collect()),
    }
}

impl Served {
    pub(super) fn new(
        client: kube::Client,
        key: TokenKey,
        credentials: Credentials,
        ends_tls: bool,
    ) -> Served {
        Served {
            key,
            pods: Mirror::default(),
            closings: Mirror::default(),
            services: Services::default(),
            credentials,
            known: HashMap::new(),
            levels: HashMap::new(),
            last: 0,
            links: Links::default(),
            until: None,
            conditions: Conditions::new(client),
            plugin: Plugin::default(),
            awaits_probe: false,
            ends_tls,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.pods.complete && self.services.complete
    }

    /// Takes an event about Pods. Returns true if one has changed.
    pub(super) fn take(&mut self, event: watcher::Event<Pod>) -> bool {
        self.pods.take(event, |pod| Arc::new(reduced(pod)))
    }

    /// Returns namespace and name of the Pod with a number.
    pub(super) fn pod(&self, number: u64) -> Option<&str> {
        self.known.values().find(|known| known.number == number).map(|known| known.name.as_str())
    }

    /// Returns the Sandbox of the Pod with a number.
    pub(super) fn subject(&self, number: u64) -> Option<&Subject> {
        self.known.values().find(|known| known.number == number).map(|known| &known.subject)
    }

    /// Waits until levels change by themselves, not longer than this.
    pub(super) fn wait(&self, most: Duration) -> impl Future<Output = ()> + use<> {
        let left = self.until.map(|until| until.duration_since(Timestamp::now()));
        let pause = left.map(|left| Duration::try_from(left).unwrap_or_default().min(most));
        async move {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Gives every Pod the levels that it should have.
    pub(super) async fn decide(
        &mut self,
        objects: &Objects,
        now: Timestamp,
        channel: &Channel,
    ) -> std::io::Result<()> {
        let pods = std::mem::take(&mut self.pods);
        let live: Vec<&Arc<Pod>> = pods.objects.values().filter(|pod| is_served(pod, objects)).collect();
        let uids: HashSet<&String> = live.iter().filter_map(|pod| pod.metadata.uid.as_ref()).collect();
        let gone: Vec<String> = self.known.keys().filter(|uid| !uids.contains(uid)).cloned().collect();
        let mut done = Ok(());
        for uid in gone {
            if let Some(known) = self.known.remove(&uid) {
                done = done.and(channel.send(&Order::End { sandbox: known.number }, &[]).await);
            }
        }
        self.until = None;
        let policies = std::mem::take(&mut self.closings);
        let closings = Closings::new(&policies);
        for pod in &live {
            if done.is_ok() {
                done = self.update(pod, (objects, &closings), now, channel).await;
            }
        }
        self.closings = policies;
        if done.is_ok() {
            done = self.update_peers(&live, objects, channel).await;
        }
        self.pods = pods;
        done?;
        self.credentials.forget_unused();
        self.forget_levels(channel).await
    }

    async fn update(
        &mut self,
        pod: &Pod,
        (objects, closings): (&Objects, &Closings<'_>),
        now: Timestamp,
        channel: &Channel,
    ) -> std::io::Result<()> {
        let reported = enforceable(&objects.fields_of_server(pod, now));
        let (found, reported) = match (objects.levels(pod, now), reported) {
            (Ok(found), Ok(reported)) => (Ok(found), reported),
            (Err(closed), _) => (Err(closed), Vec::new()),
            (Ok(found), Err(closed)) => (Err(Closed { until: found.until, ..closed }), Vec::new()),
        };
        let uid = pod.uid().unwrap_or_default();
        // The creator is recorded by the API server of one machine. On a cluster, anyone may write the annotation.
        let facts = Facts { user: None, ..objects.facts(pod) };
        let known = self.known.get_mut(&uid);
        let mut conflicts = known.map(|known| std::mem::take(&mut known.conflicts)).unwrap_or_default();
        let levels = found.as_ref().map(|found| found.levels.as_slice()).unwrap_or_default();
        let denied = conflicts.update(levels, &facts, now);
        let (issued, mistakes) = self.credentials.issue(pod, objects, levels);
        let mistakes = [reported, mistakes].concat();
        let plugin = (self.plugin, closings, self.ends_tls);
        let condition = condition(pod, objects, plugin, found.as_ref(), (denied, mistakes));
        self.conditions.set(pod, condition, self.awaits_probe && found.is_ok());
        let closed = |closed: Closed| Applying { until: closed.until, ..Applying::default() };
        let Applying { levels, until } = found.unwrap_or_else(closed);
        self.until = [self.until, until].into_iter().flatten().min();
        let client = Client::of(pod, &self.key);
        let mut numbers = Vec::new();
        for level in &levels {
            numbers.push(self.number_of(level, channel).await?);
        }
        let known = self.known.get(&uid);
        let sandbox = known.map(|known| known.number).unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        let same = |known: &&Known| {
            known.levels.len() == levels.len()
                && known.levels.iter().zip(&levels).all(|(old, new)| Arc::ptr_eq(old, new))
        };
        if known.is_none() {
            let owner = owner::sandbox(pod).map(|owner| owner.uid.clone());
            send(channel, Order::Continue { sandbox, name: owner.unwrap_or_else(|| uid.clone()) }).await?;
        }
        if known.filter(same).is_none() {
            channel.send(&Order::Levels { sandbox, levels: numbers }, &[]).await?;
        }
        if known.is_none_or(|known| known.facts != facts) {
            send(channel, Order::Facts { sandbox, facts: facts.clone() }).await?;
        }
        if known.map_or(!issued.is_empty(), |known| known.issued != issued) {
            send(channel, Order::Credentials { sandbox, credentials: issued.clone() }).await?;
        }
        if known.is_none_or(|known| known.client != client) {
            let (addresses, token) = (client.addresses.clone(), client.token.clone());
            channel.send(&Order::Client { sandbox, addresses, token }, &[]).await?;
        }
        let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        let namespace = pod.namespace().unwrap_or_default();
        let peers = self.known.remove(&uid).map(|known| known.peers).unwrap_or_default();
        let number = sandbox;
        let subject = Subject::of(pod);
        let known =
            Known { number, name, subject, client, levels, facts, namespace, peers, conflicts, issued };
        self.known.insert(uid, known);
        Ok(())
    }

    /// Gives every Pod the Services through which it may reach other Sandboxes.
    async fn update_peers(
        &mut self,
        live: &[&Arc<Pod>],
        objects: &Objects,
        channel: &Channel,
    ) -> std::io::Result<()> {
        let concerned = |known: &Known| names_sandboxes(&known.levels) || !known.peers.is_empty();
        if self.links.is_empty() && !self.known.values().any(concerned) {
            return Ok(());
        }
        let mut reachable = reachable(objects, &self.services, live.iter().copied());
        for known in self.known.values_mut().filter(|known| concerned(known)) {
            let peers = reachable.of(&known.levels, &known.namespace);
            if peers != known.peers {
                let (sandbox, namespace) = (known.number, known.namespace.clone());
                send(channel, Order::Peers { sandbox, namespace, peers: peers.clone() }).await?;
                known.peers = peers;
            }
        }
        if self.links.is_empty() {
            return Ok(());
        }
        // After the news that peers are closed. Also those of Pods that are being deleted, which may end by themselves.
        let all = behind(objects, &self.services, None, live.iter().copied());
        let numbered: HashMap<u64, &Known> = self.known.values().map(|known| (known.number, known)).collect();
        let from = |number: &u64| {
            let known = numbered.get(number)?;
            Some((known.levels.as_slice(), known.namespace.as_str()))
        };
        self.links.keep(&all, from, |address| *address);
        Ok(())
    }

    /// Decides to which Pod a connection of a Pod leads.
    pub(super) fn choose(
        &self,
        objects: &Objects,
        sandbox: u64,
        service: &(String, String),
        port: NonZeroU16,
    ) -> Result<Chosen<IpAddr>, PeerRefusal> {
        let known = self.known.values().find(|known| known.number == sandbox);
        let known = known.ok_or_else(|| PeerRefusal::denied("its Pod has ended"))?;
        let live = self.pods.objects.values().filter(|pod| is_served(pod, objects));
        // Nothing new leads to a Pod that is being deleted: it may lose its address at any time.
        let live = live.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let all = behind(objects, &self.services, Some(service), live);
        choose(&self.services, &known.levels, &known.namespace, service, port, &all)
    }

    /// Returns the number of a level, which the process then knows.
    async fn number_of(&mut self, level: &Arc<Level>, channel: &Channel) -> std::io::Result<u64> {
        if let Some((_, number)) = self.levels.get(&address(level)) {
            return Ok(*number);
        }
        self.last += 1;
        let id = self.last;
        self.levels.insert(address(level), (level.clone(), id));
        send(channel, Order::Level { id, level: Level::clone(level) }).await?;
        Ok(id)
    }

    /// Has the process forget levels that no Pod has.
    async fn forget_levels(&mut self, channel: &Channel) -> std::io::Result<()> {
        let used: HashSet<usize> = self.known.values().flat_map(|known| &known.levels).map(address).collect();
        let unused: Vec<usize> = self.levels.keys().filter(|level| !used.contains(level)).copied().collect();
        for level in unused {
            if let Some((_, id)) = self.levels.remove(&level) {
                channel.send(&Order::Forget { id }, &[]).await?;
            }
        }
        Ok(())
    }
}

/// Returns the place of a level in memory.
fn address(level: &Arc<Level>) -> usize {
    Arc::as_ptr(level).addr()
}

/// Returns true for the Pod of a Sandbox that has addresses of its own. A cluster lets everyone who may create Pods name a
/// Sandbox as the owner of any.
fn is_served(pod: &Pod, objects: &Objects) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    // The addresses of a Pod that has ended may be those of another one.
    !matches!(phase, "Succeeded" | "Failed")
        && pod.spec.as_ref().is_some_and(|spec| spec.host_network != Some(true))
        && objects.sandbox(pod).is_some_and(|sandbox| sandbox.pod == pod.name_any())
}

fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let addresses = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    addresses.filter_map(|address| address.ip.parse().ok()).collect()
}

/// Returns the parts of a Pod that count here.
fn reduced(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    let annotations = pod.metadata.annotations.as_mut();
    annotations.into_iter().for_each(|all| all.retain(|key, _| key == hutch_api::annotation::CREDENTIALS));
    pod.metadata.resource_version = None;
    let spec = pod.spec.take().unwrap_or_default();
    let volumes = spec.volumes.map(|mut volumes| {
        volumes.retain(|volume| volume.name == hutch_api::trust::CONFIG_MAP);
        volumes
    });
    // Services name ports of containers.
    let ports = |container: Container| Container { ports: container.ports, ..Container::default() };
    let containers = spec.containers.into_iter().map(ports).collect();
    pod.spec = Some(PodSpec { host_network: spec.host_network, volumes, containers, ..PodSpec::default() });
    if let Some(status) = &mut pod.status {
        status.container_statuses = None;
        status.init_container_statuses = None;
        status.conditions.iter_mut().flatten().for_each(|condition| condition.last_probe_time = None);
        status.conditions.get_or_insert_default().retain(|found| found.type_ == super::condition::TYPE);
    }
    pod
}

#[cfg(test)]
mod tests {
    use hutch_attach::SandboxFacts;
    use serde_json::json;

    use super::*;

    fn pod(status: serde_json::Value, host_network: bool, uid: &str) -> Pod {
        let owner = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "s", "uid": uid, "controller": true});
        let pod = json!({
            "metadata": {"name": "s", "namespace": "d", "uid": "p", "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "c", "env": [{"name": "HTTPS_PROXY", "value": "http://s:token-of-s@gateway"}]}], "hostNetwork": host_network},
            "status": status,
        });
        reduced(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn client_with_the_same_address_and_another_token_is_another_client() {
        let key = TokenKey::new(&[7; 32]).unwrap();
        let status = json!({"podIPs": [{"ip": "10.0.0.1"}]});
        let client = |uid: &str| Client::of(&pod(status.clone(), false, uid), &key);
        assert_eq!(client("u"), client("u"));
        assert_ne!(client("u"), client("another"));
        assert_eq!(client("u").addresses, client("another").addresses);
    }

    #[test]
    fn fields_that_a_cluster_does_not_enforce_close_the_network_or_are_reported() {
        let field = |name: &str, reports| FieldOfServer { name: name.to_owned(), reports };
        assert_eq!(enforceable(&[]), Ok(Vec::new()));
        let reported = enforceable(&[field("a", true), field("b", true)]).expect("they are reported");
        assert_eq!(reported, ["a", "b"].map(|name| format!("{name} is enforced by `hutch up` alone")));
        let closed = enforceable(&[field("a", true), field("b", false)]).expect_err("one is not enforced");
        assert_eq!(
            (closed.reason, closed.message.as_str()),
            (NOT_ENFORCEABLE, "b is enforced by `hutch up` alone: no egress")
        );
    }

    #[test]
    fn only_pods_of_sandboxes_with_their_own_addresses_are_served() {
        let mut objects = Objects::default();
        let sandbox = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "s", "namespace": "d", "uid": "u"}, "spec": {"podTemplate": {"spec": {"containers": []}}},
        });
        let sandbox: hutch_api::Sandbox = serde_json::from_value(sandbox).unwrap();
        objects.sandboxes.take(watcher::Event::Apply(sandbox), |object| SandboxFacts::of(&object));
        let status = |phase: &str| json!({"phase": phase, "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]});
        let running = pod(status("Running"), false, "u");
        assert!(is_served(&running, &objects));
        assert_eq!(addresses(&running).len(), 2);
        assert!(!format!("{running:?}").contains("token-of-s"), "the token of a Pod is not kept");
        assert!(!is_served(&pod(status("Failed"), false, "u"), &objects));
        assert!(!is_served(&pod(status("Running"), true, "u"), &objects));
        assert!(!is_served(&pod(status("Running"), false, "another"), &objects));
    }
}
