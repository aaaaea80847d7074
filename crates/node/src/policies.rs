//! Policies of Pods: which apply, what they allow together, and what the Pod's condition says about it.
//!
//! One task follows the policies and the objects by which they are attached. A Pod whose facts are not known yet reaches
//! nothing.

mod about;
mod connect;
mod credentials;
mod fresh;
mod known;
mod proxy;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hutch_api::{Sandbox, SandboxTemplate};
use hutch_attach::{
    AllBehind, Chosen, Conflicts, Link, Links, PeerRefusal, Reachable, ServiceFacts, TemplateFacts, choose,
    in_small_pages, logged, policies_of_kind, watch, watch_metadata,
};
use hutch_policy::{Level, NOT_ENFORCEABLE, PARTLY_ENFORCED, Peer, names_sandboxes};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::ApiResource;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio::sync::{Semaphore, mpsc};

use crate::config::{Egress, EgressNews, Offer, PeerAnswer, PeerRequest};
use crate::files::{Files, Unenforced};
use crate::live::{Enforced, Live};
use crate::shared::{PolicyNews, Shared};
use connect::connect;
use fresh::Fresh;
use known::Known;

pub(crate) use proxy::NoProxy;

/// Maximum events about refused connections of a Pod.
const EVENTS: u32 = 20;
/// Maximum time until the policies are applied again when one of them ends: the clock of the machine may be set.
const RECHECK: Duration = Duration::from_secs(10);
/// Maximum connections between Pods that are being made, and of one Pod.
const DIALS: usize = 2048;
const DIALS_OF_ONE: usize = 64;
/// Maximum events after which there is one decision about all Pods.
const TOGETHER: usize = 64;
/// Maximum time to connect to a Pod.
const DIAL: Duration = Duration::from_secs(10);

/// A Pod that starts or is served.
struct Served {
    live: Arc<Live>,
    /// `true` once the proxy serves it.
    attached: bool,
    /// `true` once its rules for files are known.
    fresh: bool,
    files: Option<Arc<Files>>,
    levels: Vec<Arc<Level>>,
    peers: Vec<Peer>,
    /// Time at which the levels change by themselves.
    until: Option<Timestamp>,
    facts: hutch_policy::Facts,
    /// Destinations that its policies close because they disagree.
    conflicts: Conflicts,
    /// Credentials of which the proxy knows, and whether it gets their values.
    granted: (Arc<Vec<Offer>>, bool),
    events: u32,
    /// Places of connections to other Pods that are being made.
    dials: Arc<Semaphore>,
}

/// The policies of all Pods that are served.
struct Policies {
    node: Arc<Shared>,
    egress: Arc<dyn Egress>,
    known: Known,
    served: HashMap<String, Served>,
    dials: Arc<Semaphore>,
    /// By the uids of both Pods.
    links: Links<String, String>,
    sweep: about::Sweep,
    fresh: Fresh,
}

/// Follows everything until the node stops.
pub(crate) async fn run(
    node: Arc<Shared>,
    egress: Arc<dyn Egress>,
    mut news: mpsc::UnboundedReceiver<PolicyNews>,
) {
    let client = node.client.clone();
    let mut own = watch(&client, &policies_of_kind("SandboxPolicy"));
    let mut cluster = watch(&client, &policies_of_kind("ClusterSandboxPolicy"));
    // Of namespaces and Sandboxes only the metadata.
    let mut namespaces = watch_metadata::<Namespace>(&client);
    let mut templates = watch(&client, &ApiResource::erase::<SandboxTemplate>(&()));
    let mut sandboxes = watch_metadata::<Sandbox>(&client);
    let services: Api<Service> = Api::all(client.clone());
    let mut providers = watch(&client, &policies_of_kind("CredentialProvider"));
    let mut services = logged(watcher(services, in_small_pages()));
    let mut this = Policies {
        node: node.clone(),
        egress: egress.clone(),
        known: Known::default(),
        served: HashMap::new(),
        dials: Arc::new(Semaphore::new(DIALS)),
        links: Links::default(),
        sweep: about::Sweep::default(),
        fresh: Fresh::default(),
    };
    // Events that have changed something since the last decision about all Pods.
    let mut changes = 0;
    loop {
        let event = async {
            tokio::select! {
                () = node.shutdown.wait() => None,
                // Not by levels that have changed.
                news = egress.news(), if changes == 0 => {
                    this.heed(news);
                    Some(false)
                }
                Some(event) = news.recv() => Some(this.follow(event)),
                () = this.wait(), if changes == 0 => Some(true),
                () = this.fresh.step(&client) => Some(false),
                Some(event) = own.next() => Some(this.known.objects.policies.take_policy(event)),
                Some(event) = cluster.next() => Some(this.known.objects.cluster_policies.take_policy(event)),
                Some(event) = namespaces.next() => {
                    Some(this.known.objects.namespaces.take(event, |object| object.labels().clone()))
                }
                Some(event) = templates.next() => Some(this.known.objects.templates.take(event, TemplateFacts::of)),
                Some(event) = sandboxes.next() => Some(this.sandbox(event)),
                Some(event) = providers.next() => Some(this.known.providers.take(event, hutch_attach::provider)),
                Some(event) = services.next() => Some(this.known.services.take(event, ServiceFacts::of)),
            }
        };
        // What is there already is taken first: a decision about all Pods takes time.
        let event = tokio::select! {
            biased;
            event = event, if changes < TOGETHER => Some(event),
            () = std::future::ready(()), if changes > 0 => None,
        };
        match event {
            Some(None) => return,
            Some(Some(changed)) => changes += usize::from(changed),
            None => {
                this.decide_all();
                changes = 0;
            }
        }
        this.settle();
    }
}

impl Policies {
    /// Takes news about a Pod. Returns true if they concern other Pods too.
    fn follow(&mut self, news: PolicyNews) -> bool {
        match news {
            PolicyNews::Starts(live) => self.start(live),
            PolicyNews::Changed(live) => {
                if let Some(served) = self.served.get_mut(&live.id.uid) {
                    decide(&self.known, &*self.egress, &self.node, served);
                }
            }
            PolicyNews::Served(live) => {
                let uid = live.id.uid.clone();
                if let Some(served) = self.served.get_mut(&uid) {
                    served.attached = true;
                    // What the proxy has of an earlier attempt to make the Pod is gone.
                    (served.levels, served.peers) = (Vec::new(), Vec::new());
                    decide(&self.known, &*self.egress, &self.node, served);
                }
            }
            PolicyNews::Gone(uid) => {
                if let Some(served) = self.served.remove(&uid) {
                    self.known.forget(&served.live, &*self.egress);
                }
            }
            PolicyNews::Listed => self.sweep.listed = true,
        }
        self.sweep.run(&self.known, &self.node, &*self.egress);
        self.have_peers()
    }

    /// Takes a Pod that starts, or of which something else has changed.
    fn start(&mut self, live: Arc<Live>) {
        let uid = live.id.uid.clone();
        if !self.served.contains_key(&uid) {
            self.fresh.add(&self.node.client, &live.pod(), &uid);
        }
        let new = || Served {
            live,
            attached: false,
            fresh: false,
            files: None,
            levels: Vec::new(),
            peers: Vec::new(),
            until: None,
            facts: hutch_policy::Facts::default(),
            conflicts: Conflicts::default(),
            granted: (Arc::default(), true),
            events: 0,
            dials: Arc::new(Semaphore::new(DIALS_OF_ONE)),
        };
        let served = self.served.entry(uid).or_insert_with(new);
        decide(&self.known, &*self.egress, &self.node, served);
    }

    /// Gives Pods the rules for files that are known now.
    fn settle(&mut self) {
        for uid in self.fresh.settled(&self.node.client, &self.known) {
            if let Some(served) = self.served.get_mut(&uid) {
                served.fresh = true;
                decide(&self.known, &*self.egress, &self.node, served);
            }
        }
    }

    /// Takes an event of a Sandbox. Returns true if something has changed.
    fn sandbox(&mut self, event: watcher::Event<PartialObjectMeta<Sandbox>>) -> bool {
        if !self.known.take_sandboxes(event, &*self.egress) {
            return false;
        }
        self.sweep.run(&self.known, &self.node, &*self.egress);
        true
    }

    /// Returns true if a Pod reaches other Sandboxes, or its policies name some.
    fn have_peers(&self) -> bool {
        let reaches = |served: &Served| names_sandboxes(&served.levels) || !served.peers.is_empty();
        !self.links.is_empty() || self.served.values().any(reaches)
    }

    /// Gives every Pod the levels and the peers that it should have.
    fn decide_all(&mut self) {
        for served in self.served.values_mut() {
            decide(&self.known, &*self.egress, &self.node, served);
        }
        if self.have_peers() {
            let all = self.behind(None);
            let mut reachable = Reachable::new(&self.known.services, all);
            for served in self.served.values_mut() {
                let Served { live, levels, peers, .. } = served;
                let found = reachable.of(levels, &live.id.namespace);
                if found != *peers {
                    self.egress.set_peers(&live.id.uid, &live.id.namespace, found.clone());
                    *peers = found;
                }
            }
            // After the news that peers are closed.
            let served = &self.served;
            let from = |uid: &String| {
                let from = served.get(uid)?;
                Some((from.levels.as_slice(), from.live.id.namespace.as_str()))
            };
            self.links.keep(&reachable.all, from, |live| live.id.uid.clone());
        }
    }

    fn behind(&self, only: Option<&(String, String)>) -> AllBehind<Arc<Live>> {
        let attached = self.served.values().filter(|served| served.attached);
        let running = attached.map(|served| (served.live.clone(), served.live.pod()));
        self.known.objects.behind(&self.known.services, only, running)
    }

    /// Waits until the levels of a Pod change by themselves.
    fn wait(&self) -> impl Future<Output = ()> + use<> {
        let until = self.served.values().filter_map(|served| served.until).min();
        let pause = until.map(|until| {
            let left = until.duration_since(Timestamp::now());
            Duration::try_from(left).unwrap_or_default().min(RECHECK)
        });
        async move {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Takes news of the proxy.
    fn heed(&mut self, news: EgressNews) {
        match news {
            EgressNews::Refused { pod, line, of_credential } => {
                self.report(&pod, "EgressRefused", line, of_credential)
            }
            EgressNews::NotIssued { pod, line } => self.report(&pod, "CredentialNotIssued", line, true),
            EgressNews::Dial(request) => self.dial(request),
        }
    }

    /// Makes an event about the network of a Pod. One about a credential is also one of its Sandbox.
    fn report(&mut self, pod: &str, reason: &'static str, line: String, of_credential: bool) {
        if let Some(served) = self.served.get_mut(pod).filter(|served| served.events < EVENTS) {
            served.events += 1;
            let pod = served.live.pod();
            if of_credential {
                self.node.events.of_sandbox(&pod, reason, line.clone());
            }
            self.node.events.warning(&pod, reason, line);
        }
    }

    /// Connects a Pod to another one, if its levels allow it now.
    fn dial(&mut self, request: PeerRequest) {
        let PeerRequest { pod, service, port, connects, answer } = request;
        let Some(served) = self.served.get(&pod) else { return };
        // Its own first, so that one Pod leaves places to others.
        let own = served.dials.clone().try_acquire_owned();
        let place = own.and_then(|own| Ok((own, self.dials.clone().try_acquire_owned()?)));
        let Ok(place) = place else {
            let _ = answer.send(Err(PeerRefusal::Unreachable("too many connections are being made".into())));
            return;
        };
        let from = &served.live.id.namespace;
        let all = self.behind(Some(&service));
        let chosen = choose(&self.known.services, &served.levels, from, &service, port, &all);
        match chosen {
            Err(refusal) => drop(answer.send(Err(refusal))),
            Ok(Chosen { by, .. }) if !connects => {
                drop(answer.send(Ok(PeerAnswer { by, sockets: None })));
            }
            Ok(Chosen { place: live, port: target, observed, by }) => {
                if let Some(why) = observed {
                    let line = format!(
                        "would refuse {}.{}:{port}: {why}, but it only observes",
                        service.1, service.0
                    );
                    self.report(&pod, "EgressRefused", line, false);
                }
                let to = live.id.uid.clone();
                let task = tokio::spawn(async move {
                    let connected = tokio::time::timeout(DIAL, connect(&live, target)).await;
                    let late = |_| Err(PeerRefusal::Unreachable("it did not answer in time".to_owned()));
                    drop(place);
                    match connected.unwrap_or_else(late) {
                        Ok(connected) => {
                            let _ = answer.send(Ok(PeerAnswer { by, sockets: Some(connected.sockets) }));
                            connected.held.end().await;
                        }
                        Err(refusal) => drop(answer.send(Err(refusal))),
                    }
                });
                self.links.add(Link { from: pod, service, to, port: target, task });
            }
        }
    }
}

/// Gives a Pod the rules for files, the levels and the credentials that it should have.
fn decide(known: &Known, egress: &dyn Egress, node: &Shared, served: &mut Served) {
    let (pod, now) = (served.live.pod(), Timestamp::now());
    let (mut found, mut enforced) = known.levels(&pod, now);
    // What scanned its logs before its template was deleted still does.
    let keeps = served.live.log_screen.is_set() && known.objects.lacks_template(&pod);
    if let Some(levels) = known.objects.scanning(&pod, now).filter(|_| !keeps) {
        served.live.log_screen.set(&levels);
    }
    let last = served.files.as_ref().filter(|_| served.fresh);
    let files = served.fresh.then(|| known.files(&pod, now, last)).flatten();
    served.files = files.clone().or(served.files.take());
    // Before the rules for files are known, which is when a container may start.
    let (offers, mistakes) = known.offers(&found.levels);
    served.live.set_offers(offers, credentials::placeholders(&served.live, &pod, known.fork(&pod)));
    let problem = files.and_then(|files| served.live.require_files(files));
    let problem = node.cannot_capture.clone().map(Unenforced::Refused).or(problem);
    let mut applies = enforced.holds;
    match problem.filter(|_| applies) {
        Some(Unenforced::Refused(message)) => {
            found.levels.clear();
            applies = false;
            enforced = Enforced { holds: false, reason: NOT_ENFORCEABLE, message };
        }
        Some(Unenforced::Reported(message)) => {
            let message = format!("{}; {message}", enforced.message);
            enforced = Enforced { holds: false, reason: PARTLY_ENFORCED, message };
        }
        None => {}
    }
    if let Some(closed) = served.live.closed_files().filter(|_| enforced.reason != NOT_ENFORCEABLE) {
        enforced.message.push_str(&format!("; {closed}"));
    }
    let facts = known.objects.facts(&pod);
    if let Some(denied) = served.conflicts.update(&found.levels, &facts, now) {
        if enforced.holds {
            enforced.reason = Conflicts::REASON;
        }
        enforced.message.push_str(&format!("; {denied}"));
    }
    mistakes.iter().for_each(|mistake| enforced.message.push_str(&format!("; {mistake}")));
    served.until = found.until;
    if served.attached {
        if facts != served.facts {
            egress.set_facts(&served.live.id.uid, facts.clone());
            served.facts = facts;
        }
        let same = found.levels.len() == served.levels.len()
            && found.levels.iter().zip(&served.levels).all(|(new, old)| Arc::ptr_eq(new, old));
        if !same {
            egress.set_levels(&served.live.id.uid, found.levels.clone());
            served.levels = found.levels;
        }
        let offers = if applies { served.live.offers() } else { Arc::default() };
        let granted = (offers, !known.is_pooled(&pod));
        if granted != served.granted {
            let holder = credentials::holder(known, &served.live, &pod, granted.1);
            egress.set_credentials(holder, granted.0.to_vec());
            served.granted = granted;
        }
    }
    let line = format!("{}: {}", enforced.reason, enforced.message);
    if served.live.set_enforced(enforced) {
        node.events.of_sandbox(&pod, "PolicyNotEnforced", line.clone());
        node.events.warning(&pod, "PolicyNotEnforced", line);
    }
}
