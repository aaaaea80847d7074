//! Every state that Sandboxes, claims and pools were in, and the rules that hold all along.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use hutch_api::{Sandbox, SandboxClaim, SandboxWarmPool, label};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::stage::{Delete, Stage};

/// How long a controller may take to hear that a pool has become smaller.
const LATE: Duration = Duration::from_secs(40);

#[derive(Debug)]
enum Report {
    Sandbox(Box<Sandbox>),
    Claim(Box<SandboxClaim>),
    Pool(Box<SandboxWarmPool>),
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    gone: bool,
    told: Report,
}

/// By revision.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<BTreeMap<u64, Entry>>>);

impl History {
    pub(crate) fn follow(&self, client: &Client, stage: &Arc<Stage>) {
        tokio::spawn(self.clone().watch(client.clone(), stage.clone(), |it| Report::Sandbox(Box::new(it))));
        tokio::spawn(self.clone().watch(client.clone(), stage.clone(), |it| Report::Claim(Box::new(it))));
        tokio::spawn(self.clone().watch(client.clone(), stage.clone(), |it| Report::Pool(Box::new(it))));
    }

    async fn watch<K>(self, client: Client, stage: Arc<Stage>, told: fn(K) -> Report)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let mut events = std::pin::pin!(watcher::watcher(Api::<K>::all(client), watcher::Config::default()));
        while let Some(event) = events.next().await {
            let (object, gone) = match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => (object, false),
                Ok(Event::Delete(object)) => (object, true),
                _ => continue,
            };
            let revision = object.resource_version().unwrap_or_default().parse().expect("a revision");
            let entry = Entry { at: stage.elapsed(), gone, told: told(object) };
            self.0.lock().unwrap().insert(revision, entry);
        }
    }

    /// Returns the violated rules.
    pub(crate) fn violations(&self, stage: &Stage) -> Vec<String> {
        let entries = self.0.lock().unwrap();
        let mut state = State { doubled: stage.doublings(), ..State::default() };
        for (revision, entry) in entries.iter() {
            match &entry.told {
                Report::Sandbox(sandbox) => state.sandbox(*revision, entry, sandbox),
                Report::Claim(claim) => state.claim(*revision, entry, claim),
                Report::Pool(pool) => state.pool(entry, pool),
            }
        }
        stage.deletes().iter().for_each(|delete| state.delete(delete));
        state.wrong
    }
}

/// State of the rules between entries.
#[derive(Default)]
struct State {
    wrong: Vec<String>,
    doubled: Vec<(Duration, Duration)>,
    /// Uids of Sandboxes that are there, by name.
    there: BTreeMap<String, String>,
    /// The claim to which each Sandbox was given, by uid.
    given: BTreeMap<String, String>,
    /// The Sandbox that each claim has, by uid.
    has: BTreeMap<String, String>,
    /// Sandbox that the status of a claim names: its name and uid.
    named: BTreeMap<String, (String, String)>,
    /// Members of each pool that are not on their way out.
    members: BTreeMap<String, BTreeSet<String>>,
    /// Sizes that a pool had lately: until when, and how many.
    sizes: BTreeMap<String, Vec<(Duration, usize)>>,
    /// Sandboxes that a controller may delete: once owned by a pool or a claim, or expired.
    deletable: BTreeSet<String>,
}

fn name_of(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

fn owner<'a>(sandbox: &'a Sandbox, kind: &str) -> Option<&'a OwnerReference> {
    sandbox.owner_references().iter().find(|owner| owner.kind == kind)
}

impl State {
    fn sandbox(&mut self, revision: u64, entry: &Entry, sandbox: &Sandbox) {
        let (name, uid) = (name_of(sandbox), sandbox.uid().unwrap_or_default());
        let (pool, claim) = (owner(sandbox, "SandboxWarmPool"), owner(sandbox, "SandboxClaim"));
        if sandbox.owner_references().iter().filter(|owner| owner.controller == Some(true)).count() > 1
            || pool.is_some() && claim.is_some()
        {
            self.wrong.push(format!("{revision}: Sandbox {name} has two owners"));
        }
        let owned = pool.or(claim).is_some() || sandbox.labels().contains_key(label::WARM_POOL_SANDBOX);
        if owned || sandbox.spec.shutdown_time.is_some() {
            self.deletable.insert(uid.clone());
        }
        if let Some(claim) = claim {
            self.given_to(revision, entry.at, &name, &uid, &claim.uid);
        } else if let Some(before) = self.given.get(&uid).filter(|_| pool.is_some()) {
            self.wrong.push(format!("{revision}: Sandbox {name} of claim {before} is a pool's again"));
        }
        self.count(revision, entry, sandbox);
        if entry.gone {
            self.there.remove(&name);
        } else {
            self.there.insert(name, uid);
        }
    }

    /// Returns whether a single controller ran at that time and for a while before.
    fn is_alone(&self, at: Duration) -> bool {
        !self.doubled.iter().any(|(from, to)| *from <= at && at <= *to + LATE)
    }

    fn given_to(&mut self, revision: u64, at: Duration, name: &str, sandbox: &str, claim: &str) {
        let before = self.given.insert(sandbox.into(), claim.into());
        if before.as_ref().is_some_and(|before| before != claim) {
            self.wrong.push(format!("{revision}: Sandbox {name} was {before:?}'s and is {claim}'s"));
        }
        let had = self.has.insert(claim.into(), sandbox.into());
        // Two that take themselves for the leader may each give one; which is put right later.
        if let Some(had) = had.filter(|had| had != sandbox && self.is_alone(at))
            && self.there.values().any(|uid| *uid == had)
        {
            self.wrong.push(format!("{revision}: claim {claim} has Sandbox {name} and {had}"));
        }
    }

    /// Counts the pooled Sandboxes, and reports one too many.
    fn count(&mut self, revision: u64, entry: &Entry, sandbox: &Sandbox) {
        let (name, uid) = (name_of(sandbox), sandbox.uid().unwrap_or_default());
        let made = !self.there.contains_key(&name);
        self.members.values_mut().for_each(|members| {
            members.remove(&uid);
        });
        let Some(pool) = owner(sandbox, "SandboxWarmPool") else { return };
        if entry.gone || sandbox.metadata.deletion_timestamp.is_some() {
            return;
        }
        let alone = self.is_alone(entry.at);
        let members = self.members.entry(pool.uid.clone()).or_default();
        members.insert(uid);
        let lately = self.sizes.get(&pool.uid).into_iter().flatten();
        let size = lately.filter(|(until, _)| *until >= entry.at).map(|(_, size)| *size).max();
        if made && alone && size.is_some_and(|size| members.len() > size) {
            self.wrong.push(format!(
                "{revision}: Sandbox {name} is member {} of pool {}, which has replicas {size:?}",
                members.len(),
                pool.name
            ));
        }
    }

    fn pool(&mut self, entry: &Entry, pool: &SandboxWarmPool) {
        let sizes = self.sizes.entry(pool.uid().unwrap_or_default()).or_default();
        if let Some(last) = sizes.last_mut() {
            last.0 = entry.at + LATE;
        }
        let size = usize::try_from(pool.spec.replicas.unwrap_or(1)).unwrap_or(0);
        sizes.push((Duration::MAX, size));
    }

    fn claim(&mut self, revision: u64, entry: &Entry, claim: &SandboxClaim) {
        let uid = claim.uid().unwrap_or_default();
        if entry.gone {
            self.named.remove(&uid);
            return;
        }
        let sandbox = claim.status.as_ref().and_then(|status| status.sandbox.as_ref());
        let Some(name) = sandbox.and_then(|sandbox| sandbox.name.as_ref()) else { return };
        let name = format!("{}/{name}", claim.namespace().unwrap_or_default());
        let behind = self.has.get(&uid).cloned().unwrap_or_default();
        if let Some((before, had)) = self.named.get(&uid)
            && *before != name
            && self.there.get(before) == Some(had)
        {
            self.wrong.push(format!(
                "{revision}: claim {} changed from {before} to {name}, and {before} is still there",
                name_of(claim)
            ));
        }
        self.named.insert(uid, (name, behind));
    }

    fn delete(&mut self, delete: &Delete) {
        let Some(uid) = &delete.uid else {
            return self.wrong.push(format!("{} was deleted without a precondition", delete.path));
        };
        if delete.path.contains("/sandboxes/") && !self.deletable.contains(uid) {
            self.wrong.push(format!("{} was deleted, and has no owner", delete.path));
        }
    }
}
